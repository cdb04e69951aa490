"""Fixtures: a story with invented time, a fresh store, the server that it is on, and nothing that is
left from one test to the next."""

import lapse
import lapse.aio
import pytest
from authority import Authority
from loops import KINDS, Loops
from support import Story


@pytest.fixture
def story():
    return Story()


@pytest.fixture(params=KINDS)
def loops(request):
    """The test runs in each kind of event loop."""
    return Loops(request.param)


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    """One for the whole file, where it says of which kind: `SERVER = redis_server.Server`."""
    kind = getattr(request.module, "SERVER", None)
    if kind is None:
        yield None
        return
    started = kind(tmp_path_factory.mktemp(kind.script))
    yield started
    started.stop()


@pytest.fixture
def url(server, tmp_path):
    """Of a fresh store: on the file's server, else of SQLite."""
    if server is not None:
        return server.place()
    address = f"sqlite:///{tmp_path}/orders.db"
    try:
        lapse.Scheduler(address, workers=0).close()
    except lapse.NoStore as error:
        pytest.skip(f"this build has no SQLite: {error}")
    return address


@pytest.fixture
def s(url):
    """It runs nothing by itself."""
    with lapse.Scheduler(url, workers=0) as scheduler:
        yield scheduler


@pytest.fixture
def proxy(server):
    p = server.proxy()
    yield p
    p.stall(False)
    p.close()


@pytest.fixture
def through(proxy, url):
    """The same store, through the proxy."""
    return f"{proxy.url}?{url.split('?')[1]}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """It signs what TLS needs."""
    return Authority(tmp_path_factory.mktemp("tls") / "ca", "the test's CA")


@pytest.fixture
def wakes(monkeypatch):
    """One entry for each time that a loop was told that there is something to do."""
    calls = []
    ready = lapse._runner.Runner.ready
    monkeypatch.setattr(lapse._runner.Runner, "ready", lambda r: (calls.append(1), ready(r)))
    return calls


@pytest.fixture(autouse=True)
def nothing_is_left():
    """The next test starts without the stories and the default scheduler of this one."""
    yield
    while Story.told:
        if s := Story.told.pop().s:
            s.close()
    if default := lapse._scheduler._default:
        default.close()
