"""Orders that are larger than this broker takes (max_message_size), or than it still does."""

import threading
import time

import lapse
import pytest
from consumer import Consumer
from lapse import Reason, State
from support import PATIENCE, of_debian, until

pika = of_debian("pika")
from rabbitmq_server import Server, prefix_of  # noqa: E402: it needs pika

LIMIT = 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("rabbitmq"), f"max_message_size={LIMIT}")
    yield s
    s.stop()


@pytest.fixture
def limit(server):
    """Have it take so many bytes, on channels that are opened from now on."""

    def set_limit(size):
        server.ctl("eval", f"application:set_env(rabbit, max_message_size, {size}).")

    yield set_limit
    set_limit(LIMIT)


def channels(server):
    return sorted(server.ctl("list_channels", "pid").split("\n"))


def test_who_is_too_large_is_told_and_nobody_else_is_hurt(server, url):
    sizes = [10, 0, LIMIT + 1, 20, 40_000, LIMIT + 2, LIMIT, 5, 2 * LIMIT, 1]
    with Consumer(url) as c:
        c.s.schedule("before", 0, queue="q")
        until(lambda: c.ids() == ["before"])
        results = c.s.schedule_many([(f"o{n}", 0, None, b"x" * n, "q") for n in sizes])
        for size, result in zip(sizes, results, strict=True):
            assert isinstance(result, int if size <= LIMIT else lapse.Invalid), result
        fitting = {f"o{n}" for n in sizes if n <= LIMIT}
        until(lambda: set(c.ids()) == {"before", *fitting})
        assert len(c.ids()) == 1 + len(fitting)


def test_what_the_broker_has_said_is_kept(server, url, s):
    """Only the first costs a channel; another connection finds out for itself."""
    s.schedule("o", 0, queue="q")
    with pytest.raises(lapse.Invalid, match="100002 bytes.* 100000 at most.*max_message_size"):
        s.schedule("large", 0, queue="q", payload=b"x" * (LIMIT + 2))
    before = channels(server)
    for _ in range(3):
        with pytest.raises(lapse.Invalid, match=f"{LIMIT} at most"):
            s.schedule("large", 0, queue="q", payload=b"x" * (LIMIT + 1))
    s.schedule("fits", 0, queue="q", payload=b"x" * LIMIT)
    assert channels(server) == before
    s.close()


class Worker:
    """Runs "q" as `verdict` says, and an order of "slow" as long as it is open."""

    def __init__(self, url, verdict, **policy):
        self.ran, self.leave, self.held = [], threading.Event(), []
        self.s = lapse.Scheduler(url, workers=3)
        entered = threading.Event()

        def run(order):
            self.ran.append((str(order), order.attempt, time.monotonic(), order.payload))
            verdict(order)

        def slow(order):
            entered.set()
            assert self.leave.wait(2 * PATIENCE)
            self.held.append((order.attempt, self.s.holds(order)))

        self.s.handle("slow", slow)
        self.s.schedule("slow", 0, queue="slow")
        assert entered.wait(PATIENCE)
        self.s.handle("q", run, **policy)

    def attempts(self, id):
        return [attempt for name, attempt, _, _ in self.ran if name == id]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """What ran beside it was not disturbed."""
        self.leave.set()
        until(lambda: self.held)
        self.s.close()
        assert self.held == [(1, True)]


def test_what_has_become_too_large_is_tried_again_and_dies(server, url, limit):
    """The broker was given a lower limit while the order waited. Nobody can publish it anew."""
    payload = bytes(range(256)) * 20
    with lapse.Scheduler(url, workers=0) as s:
        s.schedule("large", 0, queue="q", payload=payload)
        s.schedule("small", 0, queue="q", payload=b"42")
    limit(1000)

    def verdict(order):
        raise lapse.Retry(0.3)

    with Worker(url, verdict, attempts=3) as w:
        until(lambda: w.s.stats()["dead"] == 2, "both dead")
        assert w.attempts("large") == w.attempts("small") == [1, 2, 3]
        times = [at for id, _, at, _ in w.ran if id == "large"]
        assert all(b - a >= 0.29 for a, b in zip(times, times[1:], strict=False)), "without its back-off"
        assert {p for id, _, _, p in w.ran if id == "large"} == {payload}
        found = {info.id: info for info in w.s.orders(State.DEAD)}
        assert found["large"].payload == payload and found["large"].queue == "q"
        assert found["large"].reason is Reason.REJECTED and found["small"].reason is Reason.FAILED
        before = channels(server)
        for _ in range(3):
            with pytest.raises(lapse.Invalid, match="5120 bytes.* 1000 at most"):
                w.s.requeue("large")
        assert len(w.s.orders(State.DEAD)) == 2
        assert channels(server) == before
        assert w.s.requeue("small") > 0
        until(lambda: w.attempts("small") == [1, 2, 3, 1, 2, 3])
    limit(LIMIT)
    with Consumer(url) as c:
        assert c.s.requeue("large") > 0
        until(lambda: c.ids() == ["large"])


def test_what_is_too_large_and_held_too_long_comes_again(url, limit):
    """Its lease ends, as do those of others, which are published anew."""
    ids = ["a", "b", "c", "small"]
    with lapse.Scheduler(url, workers=0) as s:
        for id in ids:
            s.schedule(id, 0, queue="q", payload=b"x" * (10 if id == "small" else 5000))
    limit(1000)
    with lapse.Scheduler(url + "&lease=1s", workers=0) as s:
        held, ended = [], set()

        def take():
            if (order := s.take("q", 0.1)) is None:
                return
            if order.attempt == 1:
                held.append(order)
                return
            order.done()
            ended.add(str(order))

        until(lambda: take() or sorted(ended) == ids)


def test_what_is_too_large_and_was_not_tried_has_used_no_attempt(url, limit):
    with lapse.Scheduler(url, workers=0) as s:
        s.schedule("o", 0, queue="q", payload=b"x" * 5000)
    limit(1000)
    with lapse.Scheduler(url, workers=0) as s:
        slow, given = 0, 0.0
        for _ in range(10):
            order = s.take("q", PATIENCE)
            slow += time.monotonic() - given > 0.2  # Then it may have gone back to all.
            assert order == "o" and order.attempt <= max(slow, 1)
            order.give_back()
            given = time.monotonic()
        s.take("q", PATIENCE).done()


def test_a_dead_letter_that_is_too_large_is_looked_at_as_often_as_one_likes(server, url, limit):
    """Others are published anew after some looks."""
    with lapse.Scheduler(url, workers=1) as s:

        @s.handler("q")
        def close(order):
            raise lapse.Reject("no such order")

        s.schedule("large", 0, queue="q", payload=b"x" * 5000)
        s.schedule("small", 0, queue="q", payload=b"x")
        until(lambda: s.stats()["dead"] == 2)
    limit(1000)
    with lapse.Scheduler(url, workers=0) as s:
        for _ in range(8):
            found = {info.id: info for info in s.orders(State.DEAD)}
            assert {id: len(info.payload) for id, info in found.items()} == {"large": 5000, "small": 1}
            assert found["large"].error == found["small"].error == "no such order"
        before = channels(server)
        for _ in range(8):
            assert s.purge("nobody") == 0
        assert channels(server) == before
        assert s.purge("large") == 1 and s.purge("small") == 1


def test_a_shops_order_that_is_too_large(server, url, limit):
    """From its work queue nothing can be made a dead letter of lapse's: it comes again, a lease apart,
    and holds up nobody."""
    work = f"{prefix_of(url)}-work"
    with server.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(work, durable=True)
        for id, size in (("large", 5000), ("small", 5)):
            channel.basic_publish("", work, b"x" * size, pika.BasicProperties(message_id=id))
    limit(1000)

    def verdict(order):
        if order == "large":
            raise lapse.Reject("no such order")

    place = f"{url}&work={work}&queue=q&id=message_id&lease=1s"
    with Worker(place, verdict) as w:
        until(lambda: len(w.attempts("large")) >= 3)
        times = [at for id, _, at, _ in w.ran if id == "large"]
        assert all(b - a >= 0.5 for a, b in zip(times, times[1:], strict=False)), "it spins"
        assert w.attempts("small") == [1]
        assert w.s.orders(State.DEAD) == []
