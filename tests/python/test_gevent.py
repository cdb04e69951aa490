"""In a process that gevent has patched callbacks run, and nothing holds up the hub.

Each program counts how often another greenlet comes to run meanwhile: at most once when the hub
is held up until something has happened.
"""

import importlib.util
import textwrap

import pytest
from support import SANITIZED, python

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("gevent") is None, reason="gevent is not here (python3-gevent)"
    ),
    pytest.mark.skipif(SANITIZED, reason="greenlets change stacks behind a sanitizer's back"),
]

PATCH = "from gevent import monkey; monkey.patch_all()\n"
HUB = """
import gevent, os, threading, time
import lapse

ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.001)  # sleeps: between two ticks
ticker = gevent.spawn(tick)

def wait(event):
    before = ticks
    assert event.wait(20), "it did not happen"
    return ticks - before
"""


def runs(program: str, first: str = PATCH) -> None:
    done = python(first + HUB + textwrap.dedent(program))
    assert done.returncode == 0 and done.stderr == "", done.stderr


@pytest.mark.parametrize(
    "first",
    [PATCH, "import lapse\n" + PATCH, "import threading, lapse; lapse.Scheduler()\n" + PATCH],
    ids=["before the import", "after the import", "after the first Scheduler"],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_callbacks_run_beside_the_hub(first, workers):
    runs(
        f"""
        ran, hub = threading.Event(), threading.get_native_id()
        s = lapse.Scheduler(workers={workers})
        s.schedule("paid", 0.1, print)
        s.schedule("far", 3600, print)
        assert s.cancel("paid")
        seen = []
        s.schedule("o", 0.2, lambda order: (seen.append(threading.get_native_id()), ran.set()))
        assert wait(ran) > 1
        assert seen[0] != hub
        s.close()
        assert not lapse._threads.running
        """,
        first,
    )


def test_a_callback_that_sleeps_or_fails_stops_nobody():
    runs(
        """
        errors, done = [], threading.Event()
        def slow(order):
            time.sleep(0.2)    # sleeps: gevent's sleep, on the worker
            raise ValueError("on purpose")
        with lapse.Scheduler(on_error=lambda order, error: errors.append(error)) as s:
            s.schedule("slow", 0, slow)
            s.schedule("after", 0.01, lambda order: done.set())
            assert wait(done) > 1
        assert [str(error) for error in errors] == ["on purpose"]
        """
    )


def test_callbacks_may_use_what_gevent_has_patched():
    """A connection to the hub's own server, from the worker."""
    runs(
        """
        import socket
        from gevent.server import StreamServer
        server = StreamServer(("127.0.0.1", 0), lambda peer, address: peer.sendall(b"closed"))
        server.start()
        said, done = [], threading.Event()
        def close(order):
            with socket.create_connection(server.address) as peer:
                said.append(peer.makefile("rb").read())
            done.set()
        with lapse.Scheduler() as s:
            s.schedule("o", 0.05, close)
            assert wait(done) > 1
        assert said == [b"closed"]
        """
    )


def test_many_from_many_greenlets():
    runs(
        """
        ran, kept, done = set(), set(), threading.Event()
        def close(order):
            ran.add(order.id)
            if len(ran) == 500:
                done.set()
        with lapse.Scheduler(workers=2) as s:
            def shop(number):
                for n in range(20):
                    s.schedule(f"{number}/{n}", 0.05, close)
                    gevent.sleep(0)  # sleeps: not at all, others come to run
                    if n % 2 and s.cancel(f"{number}/{n}"):
                        kept.add(f"{number}/{n}")
            gevent.joinall([gevent.spawn(shop, number) for number in range(50)])
            assert len(kept) == 500
            assert wait(done) >= 0
        assert not ran & kept and len(ran) == 500
        """
    )


def test_the_process_forks_and_ends():
    runs(
        """
        lapse.schedule("parent", 3600, print)
        pid = os.fork()
        if pid == 0:
            ran = threading.Event()
            assert lapse.orders() == []
            lapse.schedule("child", 0.01, lambda order: ran.set())
            os._exit(0 if ran.wait(20) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert lapse.cancel("parent")
        lapse.schedule("pending at exit", 3600, print)
        """
    )


def test_callbacks_as_greenlets_of_the_hub():
    """What docs/python.md says: no worker, and a greenlet waits for the descriptor."""
    runs(
        """
        import gevent.socket
        ran, hub = threading.Event(), threading.get_native_id()
        seen = []
        def close(order):
            time.sleep(0.05)    # sleeps: the greenlet, while the others go on
            seen.append((order.id, threading.get_native_id()))
            if order == "last":
                ran.set()
        s = lapse.Scheduler(workers=0)
        def serve():
            while True:
                gevent.socket.wait_read(s.fileno())
                try:
                    s.process()
                except lapse.Closed:
                    return
        server = gevent.spawn(serve)
        s.schedule("first", 0.05, close)
        s.schedule("last", 0.1, close)
        assert wait(ran) > 1
        assert seen == [("first", hub), ("last", hub)]
        s.stop()
        server.join(20)
        s.close()
        """
    )
