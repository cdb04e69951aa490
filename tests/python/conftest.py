"""Fixtures: a story with invented time, and nothing that is left from one test to the next."""

import lapse
import lapse.aio
import pytest
from loops import KINDS, Loops
from support import Story


@pytest.fixture
def story():
    return Story()


@pytest.fixture(params=KINDS)
def loops(request):
    """The test runs in each kind of event loop."""
    return Loops(request.param)


@pytest.fixture
def url(tmp_path):
    """Of a fresh SQLite store."""
    address = f"sqlite:///{tmp_path}/orders.db"
    try:
        lapse.Scheduler(address, workers=0).close()
    except lapse.NoStore as error:
        pytest.skip(f"this build has no SQLite: {error}")
    return address


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
