"""The articles' own topology, used by name: lapse takes from a shop's work queue and publishes to its
delay exchange, and changes nothing of either. pika is the shop."""

import threading
import time

import lapse
import pytest
from consumer import Consumer
from lapse import Reason, State
from support import PATIENCE, of_debian, until

pika = of_debian("pika")
from rabbitmq_server import Server, prefix_of  # noqa: E402: it needs pika

SERVER = Server


@pytest.fixture
def shop(server, url):
    s = Shop(server, prefix_of(url) + "-shop")
    yield s
    s.connection.close()


class Shop:
    """A delay exchange, the queue behind it, a dead-letter exchange, a work queue."""

    def __init__(self, server, name):
        self.name, self.work = name, f"{name} work/queue"
        self.connection = server.connect()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def declare(self, kind="direct", ttl=None, queue="classic"):
        """`kind`: of the exchanges; `ttl`: of the delay queue, in seconds."""
        c, name = self.channel, self.name
        self.key = {"direct": "order.created", "topic": "order.created.vip", "fanout": ""}[kind]
        bound = {"direct": self.key, "topic": "order.#", "fanout": ""}[kind]
        arguments = {
            "x-queue-type": queue,
            "x-dead-letter-exchange": f"{name}.dlx",
            "x-dead-letter-routing-key": "order.cancel",
        }
        if ttl is not None:
            arguments["x-message-ttl"] = round(ttl * 1000)
        c.exchange_declare(f"{name}.delay", kind, durable=True)
        c.exchange_declare(f"{name}.dlx", kind, durable=True)
        c.queue_declare(f"{name}.delay", durable=True, arguments=arguments)
        c.queue_bind(f"{name}.delay", f"{name}.delay", bound)
        c.queue_declare(self.work, durable=True, arguments={"x-queue-type": queue})
        c.queue_bind(self.work, f"{name}.dlx", "order.*" if kind == "topic" else "order.cancel")
        return self

    def options(self, **more):
        words = {"work": self.work.replace(" ", "%20").replace("/", "%2F"), "queue": "close", **more}
        return "".join(f"&{name}={value}" for name, value in words.items())

    def delays(self, **more):
        """Options to publish as well."""
        return self.options(delay_exchange=f"{self.name}.delay", routing_key=self.key, **more)

    def publish(self, body, exchange=None, **properties):
        self.channel.basic_publish(
            f"{self.name}.delay" if exchange is None else exchange,
            self.key if exchange is None else self.work,
            body,
            pika.BasicProperties(delivery_mode=2, **properties),
            mandatory=True,
        )

    def left(self):
        return self.channel.queue_declare(self.work, passive=True).method.message_count


def seen_by(url, count, **policy):
    """What a consumer of `close` is given, until so many have come."""
    seen, lock = [], threading.Lock()

    def close(order):
        with lock:
            seen.append(order)

    with lapse.Scheduler(url, workers=1) as s:
        s.handle("close", close, **policy)
        until(lambda: len(seen) >= count)
        until(lambda: s.stats()["done"] >= count)
    return seen


# -- Taking from the work queue -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
@pytest.mark.parametrize("queue", ["classic", "quorum"])
def test_orders_of_the_shop_are_closed_here(url, shop, kind, queue):
    shop.declare(kind, ttl=0.2, queue=queue)
    for n in range(5):
        shop.publish(b"OID%d" % n)
    seen = seen_by(url + shop.options(), 5)
    assert sorted(map(str, seen)) == [f"OID{n}" for n in range(5)]
    for order in seen:
        assert order.queue == "close" and order.payload == b"" and order.attempt == 1
        assert abs(order.due - time.time()) < PATIENCE and order.late >= 0
    assert len({order.generation for order in seen}) == 5
    assert shop.left() == 0


def test_the_id_may_be_the_message_id(url, shop):
    shop.declare(ttl=0.1)
    shop.publish(b'{"order": 7}', message_id="OID7")
    (order,) = seen_by(url + shop.options(id="message_id"), 1)
    assert order == "OID7" and order.payload == b'{"order": 7}'


def test_a_body_that_is_no_id_becomes_a_dead_letter_and_holds_up_nobody(url, shop):
    shop.declare(ttl=0.1)
    shop.publish(b"x" * 256)
    shop.publish(b"a\0b")
    shop.publish(b"")
    shop.publish(b"OID1")
    with Consumer(url + shop.options(), "close") as c:
        until(lambda: c.ids() == ["OID1"])
        until(lambda: c.s.stats()["dead"] == 3)
    assert shop.left() == 0


def test_a_shops_consumer_beside_ours(url, shop):
    """Both take from the queue; each order is closed by one of them."""
    shop.declare(ttl=0.1)
    with Consumer(url + shop.options(), "close") as c:
        theirs = []
        shop.channel.basic_qos(prefetch_count=1)
        for n in range(100):
            shop.publish(b"OID%d" % n)
        for method, _, body in shop.channel.consume(shop.work, inactivity_timeout=0.2):
            if method is not None:
                theirs.append(body.decode())
                shop.channel.basic_ack(method.delivery_tag)
            if len(theirs) + len(c.ran) >= 100:
                break
        until(lambda: len(theirs) + len(c.ran) == 100)
        assert sorted(theirs + c.ids()) == sorted(f"OID{n}" for n in range(100))


@pytest.mark.parametrize("queue", ["classic", "quorum"])
def test_an_error_is_retried_by_our_own_queues_and_then_dead(url, shop, queue):
    shop.declare(ttl=0.1, queue=queue)
    shop.publish(b"OID1")
    attempts = []
    with lapse.Scheduler(url + shop.options(), workers=1, on_error=lambda *_: None) as s:

        @s.handler("close", attempts=3, backoff=0.1)
        def close(order):
            attempts.append((order.attempt, order.generation))
            raise ValueError("the gateway is down")

        until(lambda: s.stats()["dead"] == 1)
        (info,) = s.orders(State.DEAD)
        assert info.id == "OID1" and info.reason is Reason.FAILED and info.attempt == 3
        assert "the gateway is down" in info.error
        assert [n for n, _ in attempts] == [1, 2, 3] and len({g for _, g in attempts}) == 1
        assert s.requeue("OID1") > 0
        until(lambda: len(attempts) == 6)
    assert shop.left() == 0


def test_deliveries_are_counted_though_a_classic_queue_does_not(server, url, shop):
    """Another consumer dies with it: it is the second attempt, counted by our own queue."""
    shop.declare(ttl=0.1)
    shop.publish(b"OID1")
    with server.connect() as connection:
        channel = connection.channel()
        until(lambda: channel.basic_get(shop.work)[0] is not None)
    (order,) = seen_by(url + shop.options(), 1, attempts=5)
    assert order == "OID1" and order.attempt == 2


# -- Publishing to the delay exchange ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_our_orders_wait_in_the_shops_queue(url, shop, kind):
    """The TTL of the queue: 1 s. What comes out is closed by the shop's consumer."""
    shop.declare(kind, ttl=1)
    with lapse.Scheduler(url + shop.delays(ttl="1s"), workers=0) as s:
        began = time.monotonic()
        s.schedule("OID1", 1, queue="close")
        s.schedule("other", 0, queue="another of lapse's")
        for method, properties, body in shop.channel.consume(shop.work):
            assert time.monotonic() - began >= 1
            assert body == b"OID1" and properties.message_id == "OID1"
            shop.channel.basic_ack(method.delivery_tag)
            break


def test_there_and_back(url, shop):
    shop.declare(ttl=0.5)
    options = shop.delays(ttl="500ms", id="message_id")
    with lapse.Scheduler(url + options, workers=0) as s:
        generation = s.schedule("OID1", 0.5, queue="close", payload=b"\0\xff")
        due = time.time() + 0.5
    (order,) = seen_by(url + options, 1)
    assert order == "OID1" and order.payload == b"\0\xff" and order.generation == generation
    assert order.late >= 0 and order.attempt == 1 and abs(order.due - due) < PATIENCE


def test_each_message_may_have_its_own_ttl(url, shop):
    """The smaller of that and the queue's wins: a longer one cannot be had."""
    shop.declare(ttl=2)
    options = shop.delays(ttl="2s", expiration="message")
    with Consumer(url + options, "close") as c:
        for n in (1, 5, 15):
            c.s.schedule(f"OID{n}", n / 10, queue="close")
        with pytest.raises(lapse.Unsupported, match=r"2\.5 s cannot be had.*TTL of 2\.0 s"):
            c.s.schedule("OID25", 2.5, queue="close")
        until(lambda: len(c.ran) == 3)
        assert c.ids() == ["OID1", "OID5", "OID15"]
        assert min(late for _, late, _ in c.ran) >= 0


def test_a_queue_ttl_that_is_smaller_than_said_brings_nothing_early(url, shop):
    """What comes before its time waits in our own queues."""
    shop.declare(ttl=0.2)
    options = shop.delays(ttl="none", expiration="message")
    with Consumer(url + options, "close") as c:
        c.s.schedule("OID1", 2, queue="close")
        until(lambda: c.ids() == ["OID1"])
        assert c.ran[0][1] >= 0


def test_a_delay_that_the_shops_queue_has_not_is_a_clear_error(url, shop):
    shop.declare(ttl=3600)
    with lapse.Scheduler(url + shop.delays(ttl="1h"), workers=0) as s:
        for delay in (60, 3595, 3601):
            with pytest.raises(lapse.Unsupported, match=f"{delay}.0 s cannot be had"):
                s.schedule("OID1", delay, queue="close")
        assert s.schedule("OID1", 3600, queue="close") > 0
        with pytest.raises(lapse.Unsupported, match="payload"):
            s.schedule("OID2", 3600, queue="close", payload=b"x")


def test_a_delay_that_is_shorter_than_a_short_ttl_is_a_clear_error_too(url, shop):
    """It would be late by the rest of the TTL, and nobody would be told."""
    shop.declare(ttl=3)
    with lapse.Scheduler(url + shop.delays(ttl="3s"), workers=0) as s:
        for delay in (0, 2, 2.5):
            with pytest.raises(lapse.Unsupported, match=f"{delay:.1f} s cannot be had"):
                s.schedule("OID1", delay, queue="close")
        assert s.schedule("OID2", 3, queue="close") > 0
        assert s.schedule("OID3", 2.9, queue="close") > 0


def test_a_key_that_is_bound_to_nothing_is_named(url, shop):
    shop.declare(ttl=1)
    shop.key = "nowhere"
    with lapse.Scheduler(url + shop.delays(ttl="1s"), workers=0) as s:
        with pytest.raises(lapse.System, match='routing_key="nowhere"'):
            s.schedule("OID1", 1, queue="close")


# -- Opening, and nothing is changed ------------------------------------------------------------------


def test_what_is_not_there_is_named_and_not_made(server, url, shop):
    shop.declare(ttl=1)
    for options, words in (
        ("&work=no.such.queue", "no.such.queue.*work"),
        ("&delay_exchange=no.such&queue=q&ttl=1s", "no.such.*delay_exchange"),
    ):
        with pytest.raises(lapse.BadStore, match=words):
            lapse.Scheduler(url + options)
    assert "no.such.queue" not in server.queues("messages")


@pytest.mark.parametrize(
    "options, words",
    [
        ("&queue=q", "work="),
        ("&delay_exchange=e&ttl=1s", "queue="),
        ("&delay_exchange=e&queue=q", "ttl="),
        ("&delay_exchange=e&queue=q&ttl=none", "expiration=message"),
        ("&delay_exchange=e&queue=q&ttl=x", "ttl"),
        ("&work=w&expiration=x", "message or queue"),
        ("&work=w&id=x", "message_id or body"),
        ("&work=w&ticket=sqlite%3A///x", "only wakes"),
        ("&work=%zz", "hexadecimal"),
    ],
)
def test_wrong_options_say_what_is_wrong(url, options, words):
    with pytest.raises((lapse.BadUrl, lapse.Range), match=words):
        lapse.Scheduler(url + options)


def test_nothing_of_the_shops_is_changed(server, url, shop):
    shop.declare(ttl=0.1)
    look = ("list_queues", "--no-table-headers", "name", "arguments", "durable", "policy")
    bindings = ("list_bindings", "--no-table-headers", "source_name", "destination_name", "routing_key")

    def of_shop(command):
        return [row for row in server.ctl(*command).split("\n") if shop.name in row]

    before = of_shop(look), of_shop(bindings)
    with Consumer(url + shop.delays(ttl="100ms"), "close") as c:
        c.s.schedule("OID1", 0.1, queue="close")
        shop.publish(b"OID2")
        until(lambda: sorted(c.ids()) == ["OID1", "OID2"])
    assert (of_shop(look), of_shop(bindings)) == before


def test_a_work_queue_that_is_somebody_elses_alone_harms_no_other(url, shop, caplog):
    """RabbitMQ closes the channel of who asks: what is held goes on, and the log says why."""
    shop.declare(ttl=0.1)
    theirs = shop.channel.basic_consume(shop.work, lambda *_: None, exclusive=True)
    entered, leave, ran = threading.Event(), threading.Event(), []
    with lapse.Scheduler(url + shop.options() + "&poll=100ms", workers=2) as s:

        @s.handler("slow")
        def slow(order):
            entered.set()
            assert leave.wait(PATIENCE)
            ran.append((str(order), order.attempt, s.holds(order)))

        s.handle("close", lambda order: ran.append((str(order), order.attempt)))
        s.schedule("slow", 0, queue="slow")
        assert entered.wait(PATIENCE)
        until(lambda: "lets nothing be taken from the queue" in caplog.text)
        for n in range(5):
            s.schedule(f"ours{n}", 0, queue="close")
        until(lambda: len(ran) == 5)
        leave.set()
        until(lambda: len(ran) == 6)
        assert sorted(ran) == [*((f"ours{n}", 1) for n in range(5)), ("slow", 1, True)]
        shop.channel.basic_cancel(theirs)
        shop.publish(b"OID1")
        until(lambda: ("OID1", 1) in ran)


def test_a_work_queue_that_is_deleted_is_told_and_taken_up_again(url, shop, caplog):
    shop.declare(ttl=0.1)
    with Consumer(url + shop.options() + "&poll=200ms", "close") as c:
        shop.publish(b"OID1")
        until(lambda: c.ids() == ["OID1"])
        shop.channel.queue_delete(shop.work)
        until(lambda: "the queue of the URL option work is gone" in caplog.text)
        c.s.schedule("ours", 0.1, queue="close")
        until(lambda: "ours" in c.ids())  # The others go on.
        shop.declare(ttl=0.1)
        shop.publish(b"OID2")
        until(lambda: "OID2" in c.ids())


# -- What is given up, and by whom it is asked for ------------------------------------------------------


def test_a_message_id_that_is_none_becomes_a_dead_letter_and_holds_up_nobody(url, shop):
    shop.declare(ttl=0.1)
    shop.publish(b"no message-id at all")
    shop.publish(b"an empty one", message_id="")
    shop.publish(b"one with a NUL", message_id="a\0b")
    shop.publish(b"{}", message_id="OID1")
    with Consumer(url + shop.options(id="message_id"), "close") as c:
        until(lambda: c.ids() == ["OID1"])
        until(lambda: c.s.stats()["dead"] == 3)
        found = list(c.s.orders(State.DEAD))
        assert {info.payload for info in found} == {
            b"no message-id at all", b"an empty one", b"one with a NUL",
        }  # fmt: skip
        assert all("message-id is no order id" in info.error for info in found)
        assert c.s.purge() == 3
    assert shop.left() == 0


@pytest.mark.parametrize("step", ["consume", "publish", "leave"])
def test_what_was_given_up_is_asked_for_without_the_shops_names(url, shop, step):
    """In all three steps, as docs/rabbitmq.md says: listed and requeued by the plain URL."""
    shop.declare(ttl=0.5)
    options = {
        "consume": shop.options(), "publish": shop.delays(ttl="500ms"), "leave": "",
    }[step]  # fmt: skip
    tried = []

    def close(order):
        tried.append((str(order), order.attempt))
        if len(tried) == 1:
            raise lapse.Reject("no such order")

    with lapse.Scheduler(url + options, workers=1) as c, lapse.Scheduler(url, workers=0) as operator:
        c.handle("close", close)
        if step == "consume":
            shop.publish(b"OID1")
        else:
            c.schedule("OID1", 0.5, queue="close")
        until(lambda: operator.stats()["dead"] == 1)
        (info,) = operator.orders(State.DEAD)
        assert (info.id, info.queue, info.reason) == ("OID1", "close", Reason.REJECTED)
        assert operator.requeue("OID1") > 0
        until(lambda: tried == [("OID1", 1), ("OID1", 1)])
    assert shop.left() == 0


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
@pytest.mark.parametrize("queue", ["classic", "quorum"])
def test_the_smaller_of_both_ttls_wins_behind_each_exchange(url, shop, kind, queue):
    """The message's: an order is there long before the queue's is over. The queue's: the shop has an
    order long before the time that lapse gave it."""
    shop.declare(kind, ttl=3600, queue=queue)
    with Consumer(url + shop.delays(ttl="1h", expiration="message"), "close") as c:
        c.s.schedule("OID1", 0.2, queue="close")
        until(lambda: c.ids() == ["OID1"])
        assert c.ran[0][1] >= 0
    shop.channel.queue_delete(f"{shop.name}.delay")
    shop.declare(kind, ttl=0.2, queue=queue)
    options = shop.delays(ttl="none", expiration="message")
    with lapse.Scheduler(url + options, workers=0) as s:
        s.schedule("OID2", 3600, queue="close")
    for method, _, body in shop.channel.consume(shop.work, inactivity_timeout=PATIENCE):
        assert method is not None and body == b"OID2"
        shop.channel.basic_ack(method.delivery_tag)
        break
