"""Fixtures of the tests of the RabbitMQ store: a broker for each file, and what stands before it.
`pytest_plugins = ["rabbitmq_fixtures"]` brings them in; a file may have its own in place of one, and has
the store's `url`, for that of conftest.py goes before those from here."""

import lapse
import pytest
from rabbitmq_server import Proxy, Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("rabbitmq"))
    yield s
    s.stop()


@pytest.fixture
def s(url):
    """It runs nothing by itself."""
    with lapse.Scheduler(url, workers=0) as scheduler:
        yield scheduler


@pytest.fixture
def proxy(server):
    p = Proxy(server.port)
    yield p
    p.stall(False)
    p.close()


@pytest.fixture
def through(proxy, url):
    """The same store, through the proxy."""
    return f"{proxy.url}?{url.split('?')[1]}"
