"""ticket= with each store that can keep the orders: what was answered stands, and each order starts
once and at its time, whatever happens to RabbitMQ, to the other store, or to a consumer."""

import shutil
import subprocess
import sys
import time
from urllib.parse import quote

import lapse
import pytest
from consumer import Consumer, offline, place
from lapse import Fate, Reason, State
from support import PATIENCE, ids, of_debian, until

of_debian("pika")
from postgresql_server import Server as Postgresql  # noqa: E402: after it
from rabbitmq_server import Server, prefix_of  # noqa: E402: it needs pika
from redis_server import Server as Redis  # noqa: E402

SERVER = Server


class File:
    """In the place of a server: what needs none."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def stop(self):
        pass


SERVERS = {"sqlite": File, "postgresql": Postgresql, "redis": Redis}


@pytest.fixture(scope="module", params=SERVERS)
def keeper(request, tmp_path_factory):
    """The server, if any, of the store that keeps the orders."""
    k = SERVERS[request.param](tmp_path_factory.mktemp(request.param) / "server")
    k.kind = request.param
    yield k
    k.stop()


@pytest.fixture
def truth(server, keeper):
    """The URL of a fresh store in it, which remembers what has ended."""
    name = prefix_of(server.place())
    if keeper.kind == "sqlite":
        return f"sqlite:///{keeper.folder}/{name}.db?keep=1h"
    return f"{keeper.url}?{'schema' if keeper.kind == 'postgresql' else 'prefix'}={name}&keep=1h"


@pytest.fixture
def url(server, truth):
    return f"{server.place()}&poll=2s&ticket={quote(truth, safe='')}"


def ran_once(c, *names):
    """All of these and no others, none before its time."""
    until(lambda: set(c.ids()) >= set(names), "the last of them")
    until(lambda: c.s.stats()["pending"] + c.s.stats()["running"] == 0)
    assert sorted(c.ids()) == sorted(names)
    assert min(late for _, late, _ in c.ran) >= 0


# -- Answers -----------------------------------------------------------------------------------------


def test_every_answer_is_exact_wherever_it_is_asked(url, truth):
    """Two schedulers, and one that knows nothing of RabbitMQ."""
    with (
        lapse.Scheduler(url, workers=0) as here,
        lapse.Scheduler(url, workers=0) as there,
        lapse.Scheduler(truth, workers=0) as beside,
    ):
        generation = here.schedule("o", 60, queue="q", payload=b"\0\xff")
        for s in (here, there, beside):
            with pytest.raises(lapse.Exists):
                s.schedule("o", 1, queue="q")
            info = s.get("o")
            assert (info.state, info.queue, info.payload) == (State.PENDING, "q", b"\0\xff")
            assert info.generation == generation and ids(s) == ["o"]
        due = there.get("o").due
        assert there.reschedule("o", 3600) is Fate.RESCHEDULED
        assert 3530 < here.get("o").due - due < 3600
        replaced = there.schedule("o", 60, queue="p", replace=True)
        assert replaced > generation and here.get("o").queue == "p"
        assert here.cancel("o", generation) is Fate.UNKNOWN
        assert here.reschedule("o", 1, generation) is Fate.UNKNOWN
        here.schedule("due", 0, queue="p")
        claim = there.take("p", PATIENCE)
        assert claim == "due" and here.take("p", 0.1) is None
        assert here.get("due").state is State.RUNNING
        assert here.reschedule("due", 60) is Fate.RUNNING
        assert here.cancel("due") is Fate.RUNNING
        claim.done()
        assert here.cancel("due") is Fate.DONE
        assert here.cancel("o", replaced) is Fate.CANCELLED
        assert there.cancel("o") is Fate.DONE and there.cancel("nobody") is Fate.UNKNOWN
        assert ids(here) == ids(there) == []


def test_dead_letters_are_those_of_the_other_store(url):
    with lapse.Scheduler(url, workers=1, on_error=lambda *_: None) as s:
        seen = []

        def close(order):
            seen.append(order.attempt)
            if len(seen) < 3:
                raise ValueError("the gateway is down")

        s.handle("q", close, attempts=2, backoff=0.01)
        s.schedule("o", 0, queue="q", payload=b"\0")
        until(lambda: s.stats()["dead"] == 1)
        (info,) = s.orders(State.DEAD)
        assert (info.id, info.reason, info.attempt) == ("o", Reason.FAILED, 2)
        assert info.payload == b"\0" and "the gateway is down" in info.error
        assert s.requeue("o", 0.3) > 0
        until(lambda: seen == [1, 2, 1])
        until(lambda: s.cancel("o") is Fate.DONE)


# -- When it starts ---------------------------------------------------------------------------------


def test_a_change_of_the_time_holds(url):
    """Sooner, later, away and anew, by somebody else, while a consumer waits."""
    with Consumer(url) as c, lapse.Scheduler(url, workers=0) as s:
        began = time.time()
        s.schedule("sooner", 3600, queue="q")
        s.schedule("later", 3, queue="q")
        s.schedule("paid", 3, queue="q")
        s.schedule("replaced", 3, queue="q")
        assert s.reschedule("later", 5) is Fate.RESCHEDULED
        assert s.cancel("paid") is Fate.CANCELLED
        s.schedule("replaced", 4, queue="q", replace=True)
        assert s.reschedule("sooner", 0.3) is Fate.RESCHEDULED
        ran_once(c, "sooner", "replaced", "later")
        assert c.ids() == ["sooner", "replaced", "later"]
        assert time.time() - began >= 5


def test_two_processes_run_each_order_once(url):
    program = """
import lapse, os, sys
s = lapse.Scheduler(sys.argv[1], workers=2)
s.handle("q", lambda order: os.write(1, b"%s %d\\n" % (order.id.encode(), order.attempt)) and None)
os.write(1, b"up\\n")
sys.stdin.read()
s.close()
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", program, url], stdin=-1, stdout=-1) for _ in range(2)
    ]
    try:
        for w in workers:
            assert w.stdout.readline() == b"up\n"
        with lapse.Scheduler(url, workers=0) as s:
            for n in range(20):
                place(s, f"{n}-", 10, n * 0.02)
            until(lambda: s.stats()["pending"] + s.stats()["running"] == 0)
    finally:
        said = [w.communicate(timeout=PATIENCE)[0] for w in workers]
    assert [w.returncode for w in workers] == [0, 0]
    ran = [line.split() for line in b"".join(said).splitlines()]
    assert sorted(id.decode() for id, _ in ran) == sorted(f"{n}-{i}" for n in range(20) for i in range(10))
    assert {attempt for _, attempt in ran} == {b"1"}


# -- What fails ---------------------------------------------------------------------------------------


def test_a_consumer_that_is_killed_holds_its_order_for_a_lease_only(url):
    program = """
import lapse, os, signal, sys
s = lapse.Scheduler(sys.argv[1], workers=1)
def close(order):
    os.write(1, b"%d %d\\n" % (order.attempt, order.fence))
    os.kill(os.getpid(), signal.SIGKILL)
s.handle("q", close, attempts=5)
signal.pause()
"""
    url += "&lease=2s"
    with lapse.Scheduler(url, workers=0) as s:
        s.schedule("o", 0, queue="q")
    killed = subprocess.run(
        [sys.executable, "-c", program, url], capture_output=True, timeout=PATIENCE, check=False
    )
    attempt, fence = map(int, killed.stdout.split())
    assert killed.returncode == -9 and attempt == 1
    with lapse.Scheduler(url, workers=0) as s:
        claim = s.take("q", PATIENCE)
        assert claim == "o" and claim.attempt == 2 and claim.fence > fence
        claim.done()
        assert s.cancel("o") is Fate.DONE


def test_the_broker_is_killed_between(server, url):
    """Between the answer and the time; some fall due while it is away."""
    with Consumer(url) as c, lapse.Scheduler(url, workers=0) as s:
        for n in range(40):
            s.schedule(f"o{n}", 0.5 + n / 10, queue="q")
        place(s, "far", 2, 3600)
        server.kill()
        place(s, "meanwhile", 5, 0.5)
        assert s.cancel("far0") is Fate.CANCELLED
        assert s.reschedule("far1", 0) is Fate.RESCHEDULED
        until(lambda: {"o0", "far1", "meanwhile0"} <= set(c.ids()))
        server.start()
        ran_once(c, "far1", *(f"o{n}" for n in range(40)), *(f"meanwhile{n}" for n in range(5)))


def wipe(server):
    """As after the loss of the broker's disk: it comes back and knows nothing."""
    server.kill()
    shutil.rmtree(server.folder / "mnesia")
    server.start()


def test_a_broker_that_has_lost_everything_costs_nothing(server, url):
    """Wake-ups are gone with their queues; those are made anew, and wake again."""
    with Consumer(url) as c, lapse.Scheduler(url, workers=0) as s:
        names = [f"o{n}" for n in range(40)]
        for n, name in enumerate(names):
            s.schedule(name, 0.5 + n / 5, queue="q")
        s.schedule("far", 3600, queue="q")
        wipe(server)
        assert s.get("far").state is State.PENDING
        assert s.reschedule("far", 0.5) is Fate.RESCHEDULED
        ran_once(c, "far", *names)
        until(lambda: any(".wake." in name for name in server.queues()), "the queues")


def test_opened_after_the_broker_has_lost_everything(server, url):
    with lapse.Scheduler(url, workers=0) as s:
        place(s, "o", 20, 0.5)
        s.schedule("far", 3600, queue="q")
    wipe(server)
    with Consumer(url) as c:
        until(lambda: len(c.ran) == 20)
        assert sorted(c.ids()) == sorted(f"o{n}" for n in range(20))
        assert c.s.cancel("far") is Fate.CANCELLED


def test_the_store_is_down_when_the_broker_wakes(keeper, url):
    """A wake-up finds nobody to ask: said, tried again, and no order is lost or started twice."""
    if keeper.kind == "sqlite":
        pytest.skip("a file is not down")
    with Consumer(url) as c, lapse.Scheduler(url, workers=0) as s:
        place(c.s, "before", 1, 0)
        until(lambda: c.ids() == ["before0"])
        place(s, "o", 20, 1)
        keeper.kill()
        until(lambda: offline(c.s) > 1, "the outage")
        with pytest.raises((lapse.Offline, lapse.Unsure)):
            s.schedule("refused", 0, queue="q")
        assert c.ids() == ["before0"]
        keeper.start()
        until(lambda: offline(c.s) == 0, "its end")
        until(lambda: len(c.ran) >= 21)
        assert set(c.ids()) - {"refused"} == {"before0", *(f"o{n}" for n in range(20))}
        assert len(set(c.ids())) == len(c.ran) and min(late for _, late, _ in c.ran) >= 0


def test_both_are_away_and_come_back(server, keeper, url):
    if keeper.kind == "sqlite":
        pytest.skip("a file is not away")
    with Consumer(url) as c, lapse.Scheduler(url, workers=0) as s:
        place(s, "o", 20, 1)
        server.kill()
        keeper.kill()
        until(lambda: offline(c.s) > 0)
        keeper.start()
        until(lambda: len(c.ran) == 20)
        server.start()
        until(lambda: offline(s) == 0)
        place(s, "p", 5, 0)
        ran_once(c, *(f"o{n}" for n in range(20)), *(f"p{n}" for n in range(5)))
