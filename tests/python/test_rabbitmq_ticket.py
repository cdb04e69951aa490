"""RabbitMQ wakes and another store keeps the orders: ticket=."""

import logging
import time
from urllib.parse import quote

import lapse
import pytest
from consumer import Consumer, place
from lapse import Fate, State
from support import PATIENCE, in_threads, of_debian, rounds, until

of_debian("pika")
from rabbitmq_server import Server, prefix_of  # noqa: E402: it needs pika
from redis_server import Server as Redis  # noqa: E402

SERVER = Server


@pytest.fixture
def truth(tmp_path):
    return f"sqlite:///{tmp_path}/orders.db"


@pytest.fixture
def url(server, truth):
    return f"{server.place()}&ticket={quote(truth, safe='')}"


@pytest.fixture
def deaf_url(server, tmp_path):
    """The store inside tells nobody of anything: its user may not subscribe. Whoever sends a heartbeat,
    or gets one, looks too: nobody does here."""
    server.ctl("eval", "application:set_env(rabbit, heartbeat, 3600).")
    redis = Redis(tmp_path / "redis")
    redis.ask("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "-subscribe", "resetchannels")
    inside = redis.url.replace("//", "//deaf:pw@") + "?poll=1h"
    yield f"{server.place()}&poll=1h&heartbeat=1h&ticket={quote(inside, safe='')}"
    redis.stop()


def test_every_answer_is_exact(url):
    with lapse.Scheduler(url, workers=0, keep=60) as s:
        generation = s.schedule("o", 60, queue="q", payload=b"\0p")
        with pytest.raises(lapse.Exists):
            s.schedule("o", 60, queue="q")
        assert s.get("o").payload == b"\0p" and s.get("o").generation == generation
        assert s.reschedule("o", 120) is Fate.RESCHEDULED
        assert s.schedule("o", 60, queue="q", replace=True) > generation
        assert s.cancel("o", generation) is Fate.UNKNOWN
        assert s.cancel("o") is Fate.CANCELLED
        assert s.cancel("o") is Fate.DONE
        assert [info.id for info in s.orders(State.PENDING)] == []


def test_the_broker_wakes_who_would_have_slept_on(deaf_url):
    """Polling alone would take an hour, for what is due now and for what is due later."""
    with Consumer(deaf_url) as c, lapse.Scheduler(deaf_url, workers=0) as other:
        place(c.s, "warm", 1, 0)
        until(lambda: c.ids() == ["warm0"])
        other.schedule("far", 3600, queue="q")
        for n, delay in enumerate([0, 0.3, 1]):
            began = time.monotonic()
            other.schedule(f"o{n}", delay, queue="q")
            until(lambda n=n: f"o{n}" in c.ids())
            print(f"{delay} s: there after {time.monotonic() - began:.3f} s")
        other.schedule("sooner", 3600, queue="q")
        assert other.reschedule("sooner", 0.2) is Fate.RESCHEDULED
        until(lambda: "sooner" in c.ids())
        assert other.cancel("far") is Fate.CANCELLED
        assert min(late for _, late, _ in c.ran) >= 0


def test_a_retry_wakes_another_consumer(deaf_url):
    """Which knows of it that it is held, and till when."""
    deaf_url += "&lease=10m"
    with lapse.Scheduler(deaf_url, workers=0) as first:
        first.schedule("o", 0, queue="q")
        claim = first.take("q", PATIENCE)
        with Consumer(deaf_url) as c:
            place(c.s, "warm", 1, 0)
            until(lambda: c.ids() == ["warm0"])
            claim.retry(0.5)
            until(lambda: c.ids() == ["warm0", "o"])
            assert c.ran[1][1] >= 0


def test_hints_do_not_pile_up_where_nobody_waits(server, url):
    with lapse.Scheduler(url, workers=0) as s:
        place(s, "o", 100, 0.1)
        for n in range(20):
            s.schedule(f"n{n}", 0.01 * n, queue="q")
        until(lambda: s.stats()["pending"] == 120)

        def waiting():
            rows = server.queues("messages").items()
            return sum(int(n) for name, (n,) in rows if name.startswith(prefix_of(url) + "."))

        until(lambda: waiting() <= 1)


def test_without_the_broker_nothing_fails_and_the_log_says_why(proxy, through, truth, caplog):
    """What is scheduled while it is away starts within the bound of the store inside."""
    caplog.set_level(logging.INFO)
    with Consumer(through + "&poll=1h") as c, lapse.Scheduler(truth, workers=0) as beside:
        until(lambda: c.s.stats()["poll_bound"] == 3600)
        proxy.refuse()
        until(lambda: c.s.stats()["poll_bound"] < 10)
        until(lambda: "RabbitMQ wakes nobody" in caplog.text)
        place(c.s, "o", 50, 0.2)  # None fails: `place` looks at each answer.
        beside.schedule("from elsewhere", 0.2, queue="q")
        until(lambda: len(c.ran) == 51)
        assert c.s.stats()["offline"] == 0
        assert c.s.cancel("nobody") is Fate.UNKNOWN
        proxy.accept()
        place(c.s, "again", 1, 0)
        until(lambda: c.s.stats()["poll_bound"] == 3600)
        until(lambda: "as it should be again" in caplog.text)
    assert sorted(c.ids()) == sorted(set(c.ids()))
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert 1 <= len(warnings) <= 3, "said once, not with each try"


def test_it_opens_without_the_broker(proxy, through):
    proxy.refuse()
    with Consumer(through) as c:
        place(c.s, "o", 10, 0)
        until(lambda: len(c.ran) == 10)
        proxy.accept()
        place(c.s, "p", 10, 0)
        until(lambda: len(c.ran) == 20)


def test_a_broker_that_does_not_answer_holds_up_nobody_for_long(proxy, through):
    with Consumer(through) as c:
        place(c.s, "before", 1, 0)
        proxy.stall()
        began = time.monotonic()
        for n in range(rounds(20, 50, 200)):
            assert c.s.schedule(f"o{n}", 0.1, queue="q") > 0
        until(lambda: len(c.ran) == n + 2)
        print(f"{n + 1} schedules took {time.monotonic() - began:.2f} s")


def test_the_broker_is_killed_and_no_order_is_late_for_good(server, url):
    """Some fall due while it is away; each starts once."""
    count = rounds(200, 1000, 10000)
    with Consumer(url + "&poll=2s") as c, lapse.Scheduler(url, workers=0) as other:
        results = other.schedule_many(
            [(f"o{n}", 0.5 + 5 * n / count, None, None, "q") for n in range(count)]
        )
        assert all(isinstance(r, int) for r in results)
        server.kill()
        place(other, "meanwhile", 20, 0.5)
        until(lambda: {f"meanwhile{n}" for n in range(20)} <= set(c.ids()))
        server.start()
        until(lambda: len(c.ran) == count + 20)
        assert len(set(c.ids())) == count + 20
        assert min(late for _, late, _ in c.ran) >= 0


def test_two_consumers_run_each_order_once(url):
    count = rounds(200, 2000, 20000)
    with Consumer(url) as a, Consumer(url) as b, lapse.Scheduler(url, workers=0) as s:

        def produce(number):
            for i in range(number, count, 400):
                ids = range(i, min(i + 400, count), 4)
                s.schedule_many([(f"o{n}", 0.05, None, None, "q") for n in ids])

        in_threads(4, produce)
        while len(a.ran) + len(b.ran) < count:
            before = len(a.ran) + len(b.ran)
            until(lambda n=before: len(a.ran) + len(b.ran) > n)
        assert len(set(a.ids()) | set(b.ids())) == count == len(a.ran) + len(b.ran)


@pytest.mark.parametrize(
    "ticket, words",
    [
        ("", 'option "ticket" .*URL of the store that keeps the orders'),
        ("memory:", "keeps the orders"),
        ("orders.db", "ticket= names a store that keeps the orders"),
        ("amqp://localhost/", "keeps the orders"),
        ("nowhere:", "not the scheme of a store: use memory:, sqlite:, postgresql:, redis: or amqp:"),
        ("sqlite:///no/such/folder/x.db", "folder"),
        ("redis://:s3cret@127.0.0.1:1/0", "cannot be reached"),
    ],
)
def test_a_wrong_ticket_is_named(server, ticket, words):
    with pytest.raises(lapse.Error, match=words) as caught:
        lapse.Scheduler(f"{server.place()}&ticket={quote(ticket, safe='')}")
    assert "s3cret" not in str(caught.value)


def test_a_ticket_that_is_not_encoded_is_not_shown(server):
    for ticket in ("redis://:s3cret%zz@h", "postgresql://shop:s3cret@h/x?a=1"):
        with pytest.raises(lapse.Error) as caught:
            lapse.Scheduler(f"{server.place()}&ticket={ticket}")
        assert "s3cret" not in str(caught.value)


def test_a_broker_that_refuses_us_is_an_error(server, truth):
    wrong = server.place().replace("guest:guest", "guest:s3cret")
    with pytest.raises(lapse.System, match="refuses") as caught:
        lapse.Scheduler(f"{wrong}&ticket={quote(truth, safe='')}")
    assert "s3cret" not in str(caught.value)


def test_a_requeued_dead_letter_wakes_who_would_have_slept_on(deaf_url):
    tried = []

    def close(order):
        tried.append(order.attempt)
        if len(tried) == 1:
            raise lapse.Reject("no such order")

    with lapse.Scheduler(deaf_url, workers=1) as c, lapse.Scheduler(deaf_url, workers=0) as other:
        c.handle("q", close)
        other.schedule("o", 0, queue="q")
        until(lambda: other.stats()["dead"] == 1)
        assert other.requeue("o", 0.3) > 0
        until(lambda: tried == [1, 1])


def test_an_order_that_was_taken_and_is_given_back_wakes_another(deaf_url):
    """Its holder is closed without having ended it."""
    deaf_url += "&lease=10m"
    first = lapse.Scheduler(deaf_url, workers=0)
    first.schedule("o", 0, queue="q")
    claim = first.take("q", PATIENCE)
    assert claim == "o"
    with Consumer(deaf_url) as c:
        place(c.s, "warm", 1, 0)
        until(lambda: c.ids() == ["warm0"])
        first.close()
        until(lambda: c.ids() == ["warm0", "o"])


def test_what_is_scheduled_while_a_consumer_begins_to_wait_is_not_slept_on(deaf_url):
    """Between its look and its binding it is woken by nobody."""
    with lapse.Scheduler(deaf_url, workers=0) as other:
        for n in range(rounds(15, 40, 200)):
            with Consumer(deaf_url) as c:
                other.schedule(f"o{n}", 0, queue="q")
                until(lambda n=n, c=c: c.ids() == [f"o{n}"])
