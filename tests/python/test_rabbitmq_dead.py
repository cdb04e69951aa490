"""Dead letters of the RabbitMQ store: for each of the broker's reasons and for ours, listed and
requeued through lapse."""

import json
import subprocess
import sys
import time

import lapse
import pytest
from consumer import Consumer
from lapse import Reason, State
from support import of_debian, until

pika = of_debian("pika")
from rabbitmq_server import Server, prefix_of  # noqa: E402: it needs pika

SERVER = Server


def dead(s, count=1):
    until(lambda: s.stats()["dead"] == count, "the dead letter")
    found = {info.id: info for info in s.orders(State.DEAD)}
    assert len(found) == count
    return found


def requeue_and_run(url, s, id, payload, queue="q"):
    """It is no dead letter any more, and runs once more with a count of its own."""
    assert s.requeue(id) > 0
    assert s.orders(State.DEAD) == []
    seen = []
    with lapse.Scheduler(url, workers=1) as consumer:
        consumer.handle(queue, lambda order: seen.append((str(order), order.attempt, order.payload)))
        until(lambda: seen == [(id, 1, payload)])
    assert s.orders(State.DEAD) == []


def schedule(s, *ids):
    for id in ids:
        s.schedule(id, 0, queue="q", payload=b"\0" + id.encode())


# -- The broker's ----------------------------------------------------------------------------------


def test_rejected_by_a_client_of_another_kind(server, url, s):
    schedule(s, "o")
    with server.connect() as connection:
        channel = connection.channel()
        for method, _, _ in channel.consume(f"{prefix_of(url)}.work.q"):
            channel.basic_reject(method.delivery_tag, requeue=False)
            break
    info = dead(s)["o"]
    assert info.reason is Reason.REJECTED and info.payload == b"\0o" and info.queue == "q"
    assert "rejected" in info.error and f"{prefix_of(url)}.work.q" in info.error
    requeue_and_run(url, s, "o", b"\0o")


def policy(server, url, definition):
    server.ctl("set_policy", prefix_of(url), f"^{prefix_of(url)}\\.work\\.", definition)


def test_expired_by_a_policy_of_the_operator(server, url, s):
    policy(server, url, '{"message-ttl": 1}')
    schedule(s, "o")
    info = dead(s)["o"]
    server.ctl("clear_policy", prefix_of(url))
    assert info.reason is Reason.EXPIRED and "expired" in info.error
    requeue_and_run(url, s, "o", b"\0o")


def test_delivered_too_often(server, url, s):
    schedule(s, "o")
    policy(server, url, '{"delivery-limit": 2}')
    with server.connect() as connection:
        channel = connection.channel()
        count = 0
        for method, _, _ in channel.consume(f"{prefix_of(url)}.work.q", inactivity_timeout=1):
            if method is None:
                if count >= 3:
                    break
                continue
            count += 1
            channel.basic_nack(method.delivery_tag, requeue=True)
    assert count == 3
    info = dead(s)["o"]
    server.ctl("clear_policy", prefix_of(url))
    assert info.reason is Reason.LOST and "delivery_limit" in info.error
    requeue_and_run(url, s, "o", b"\0o")


def test_a_limit_of_deliveries_wears_out_no_dead_letter(server, url, s):
    """A policy for all queues: whoever looks gives back what he saw, which counts as a delivery."""
    server.ctl("set_policy", "all", ".*", '{"delivery-limit": 3}')
    try:
        with lapse.Scheduler(url, workers=1) as consumer:

            @consumer.handler("q")
            def close(order):
                raise lapse.Reject("no such order")

            schedule(s, "a", "b", "c")
            dead(s, 3)
        for _ in range(10):
            assert sorted(dead(s, 3)) == ["a", "b", "c"]
            assert s.purge("nobody") == 0
        assert all(info.error == "no such order" for info in s.orders(State.DEAD))
    finally:
        server.ctl("clear_policy", "all")
    assert s.purge("a") == 1 and s.purge("b") == 1
    requeue_and_run(url, s, "c", b"\0c")


def test_a_policy_of_their_own_keeps_that_of_all_queues_from_ours(server, url, s):
    """One by which a queue that nobody uses is deleted, with all that waits in it, and one by which
    messages expire: as docs/rabbitmq.md says, of two policies the one with the priority holds."""
    prefix = prefix_of(url)
    harmless = '{"delivery-limit": 2147483647}'
    server.ctl("set_policy", "--priority", "1", "ours", f"^{prefix}\\.", harmless)
    server.ctl("set_policy", "all", ".*", '{"expires": 1000, "message-ttl": 100}')
    ran = []
    try:
        s.schedule("o", 4, queue="q")
        with lapse.Scheduler(url, workers=1) as consumer:
            consumer.handle("q", lambda order: ran.append((str(order), order.attempt)))
            until(lambda: ran == [("o", 1)])
    finally:
        server.ctl("clear_policy", "all")
        server.ctl("clear_policy", "ours")
    assert s.stats()["dead"] == 0


def test_dropped_from_a_queue_of_the_shop_that_was_full(server, url, s):
    """A shop's own queue holds one order and hands the rest to our dead letters."""
    schedule(s, "a", "b")
    name = f"{prefix_of(url)}-shop"
    with server.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(
            name,
            arguments={"x-max-length": 1, "x-dead-letter-exchange": f"{prefix_of(url)}.dead"},
        )
        moved = 0
        for method, properties, body in channel.consume(f"{prefix_of(url)}.work.q"):
            channel.basic_publish("", name, body, properties)
            channel.basic_ack(method.delivery_tag)
            moved += 1
            if moved == 2:
                break
    info = dead(s)["a"]
    assert info.reason is Reason.MAXLEN and "maxlen" in info.error
    requeue_and_run(url, s, "a", b"\0a")


# -- Ours -------------------------------------------------------------------------------------------


def test_failed_rejected_and_expired_by_us(url, s):
    attempts = {}

    def close(order):
        attempts[str(order)] = order.attempt
        if order == "failed":
            raise ValueError("no stock é")
        raise lapse.Reject("no such order")

    told = []
    due = time.time()
    with lapse.Scheduler(
        url, workers=1, on_error=lambda *_: None, on_dead=lambda info, _: told.append(info.id)
    ) as consumer:
        schedule(s, "expired")
        until(lambda: time.time() > due + 0.3)
        consumer.handle("q", close, attempts=2, backoff=0.01, expires=0.2)
        s.schedule("failed", 0, queue="p", payload=b"\0failed")
        s.schedule("rejected", 0, queue="p")
        consumer.handle("p", close, attempts=2, backoff=0.01)
        found = dead(s, 3)
        until(lambda: len(told) == 3)
    assert sorted(told) == sorted(found)
    assert attempts == {"failed": 2, "rejected": 1}
    assert found["failed"].reason is Reason.FAILED and "no stock é" in found["failed"].error
    assert found["failed"].attempt == 2 and found["failed"].payload == b"\0failed"
    assert found["rejected"].reason is Reason.REJECTED
    assert found["rejected"].error == "no such order"
    assert found["expired"].reason is Reason.EXPIRED
    assert due < found["expired"].due + 1 < found["expired"].ended + 1
    assert s.purge("rejected") == 1 and s.purge("expired") == 1
    requeue_and_run(url, s, "failed", b"\0failed", "p")


def test_the_broker_shows_why_and_how_late(server, url, s):
    """An operator without lapse reads the headers."""
    with lapse.Scheduler(url, workers=1, on_error=lambda *_: None) as consumer:

        @consumer.handler("q", attempts=3, backoff=0.001)
        def close(order):
            raise ValueError("no stock")

        schedule(s, "o")
        dead(s)
    ((properties, body),) = server.messages(f"{prefix_of(url)}.dead")
    headers = properties.headers
    assert properties.message_id == "o" and body == b"\0o"
    assert headers["lapse-reason"] == "failed" and "no stock" in headers["lapse-error"]
    assert headers["lapse-attempt"] == 3 and headers["lapse-late-ms"] >= 0
    assert headers["lapse-queue"] == "q" and abs(headers["lapse-due"] / 1e9 - time.time()) < 600
    assert "x-death" not in headers


def test_many_are_listed_requeued_and_purged(url, s):
    ids = [f"o{n}" for n in range(120)]
    with lapse.Scheduler(url, workers=1, on_error=lambda *_: None) as consumer:

        @consumer.handler("q")
        def close(order):
            raise lapse.Reject("no")

        s.schedule_many([(id, 0, None, None, "q") for id in ids])
        assert sorted(dead(s, len(ids))) == sorted(ids)
    for id in ids[:3]:
        assert s.requeue(id, 0.1) > 0
    with pytest.raises(lapse.Unknown):
        s.requeue(ids[0])
    assert s.purge(ids[3]) == 1
    with Consumer(url) as c:
        until(lambda: sorted(c.ids()) == sorted(ids[:3]))
    assert sorted(dead(s, len(ids) - 4)) == sorted(ids[4:])
    assert s.purge() == len(ids) - 4
    assert s.stats()["dead"] == 0


def test_a_death_that_a_client_has_made_up_is_shown_as_it_fits(server, url, s):
    made_up = [{"reason": "r" * 50_000, "queue": "q" * 50_000, "count": 1}]
    with server.connect() as connection:
        connection.channel().basic_publish(
            "", f"{prefix_of(url)}.dead", b"x",
            pika.BasicProperties(message_id="o", headers={"x-death": made_up}),
        )  # fmt: skip
    assert len(dead(s)["o"].error) <= 1000


def test_a_message_of_somebody_else_among_them_holds_up_nothing(server, url, s):
    with server.connect() as connection:
        connection.channel().basic_publish(f"{prefix_of(url)}.dead", "", b"not ours")
    with lapse.Scheduler(url, workers=1) as consumer:

        @consumer.handler("q")
        def close(order):
            raise lapse.Reject("no")

        schedule(s, "o")
        until(lambda: "o" in [info.id for info in s.orders(State.DEAD)])
    requeue_ids = [info.id for info in s.orders(State.DEAD)]
    assert requeue_ids.count("o") == 1
    assert s.requeue("o") > 0


# -- Some of them -----------------------------------------------------------------------------------


def tool(url, *words):
    """What the command line says, which knows of no queue here."""
    command = [sys.executable, "-m", "lapse", *words, "--url", url, "--json"]
    done = subprocess.run(command, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def reject(order):
    raise lapse.Reject("no")


def test_those_of_one_queue_are_counted_listed_requeued_and_purged(url, s):
    with lapse.Scheduler(url, workers=1) as consumer:
        for queue, count in (("a", 20), ("b", 3)):
            consumer.handle(queue, reject)
            consumer.schedule_many([(f"{queue}{n}", 0, None, None, queue) for n in range(count)])
        dead(s, 23)
        assert consumer.queue_stats("a")["dead"] == 20 and consumer.queue_stats("b")["dead"] == 3
        assert "lapse_queue_dead_letters{" not in consumer.metrics()
        assert 'lapse_orders{state="dead"} 23' in consumer.metrics()
        seen = 0
        for info in consumer.orders(State.DEAD):
            seen += info.queue == "b"
        assert seen == 3
    assert sorted(row["id"] for row in tool(url, "dead", "--queue", "b")) == ["b0", "b1", "b2"]
    assert tool(url, "dead", "--queue", "nobody's") == []
    assert tool(url, "requeue", "--all", "--queue", "b") == [{"requeued": 3, "failed": 0}]
    assert s.queue_stats("")["dead"] == 0 and s.stats()["dead"] == 20
    with Consumer(url, "b") as c:
        until(lambda: sorted(c.ids()) == ["b0", "b1", "b2"])
    assert tool(url, "purge", "--all", "--queue", "b", "--yes") == [{"purged": 0, "failed": 0}]
    assert tool(url, "purge", "--all", "--queue", "a", "--yes") == [{"purged": 20, "failed": 0}]
    assert s.stats()["dead"] == 0


def test_one_without_an_id_has_a_name(server, url, s):
    """Of a shop's own queue: what lapse could not take for an order, and what others have put there."""
    work = f"{prefix_of(url)}-work"
    bodies = [b"x" * 300, b"y" * 300, b""]
    with server.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(work, durable=True)
        for body in bodies:
            channel.basic_publish("", work, body)
        channel.basic_publish("", f"{prefix_of(url)}.dead", b"not ours")
    with lapse.Scheduler(f"{url}&work={work}&queue=close", workers=1) as consumer:
        consumer.handle("close", lambda order: None)
        until(lambda: s.stats()["dead"] == 4)
    found = {info.payload: info for info in s.orders(State.DEAD)}
    assert set(found) == {*bodies, b"not ours"}
    names = {body: info.id for body, info in found.items()}
    assert len(set(names.values())) == 4 and all(len(id) == 17 and id[0] == "?" for id in names.values())
    assert [info.queue for info in found.values()].count("close") == 3
    assert names == {info.payload: info.id for info in s.orders(State.DEAD)}
    assert s.purge("?0123456789abcdef") == 0
    assert s.purge(names[b""]) == 1
    assert s.requeue(names[b"not ours"]) > 0
    order = s.take("", 10)
    assert order == names[b"not ours"] and order.payload == b"not ours"
    order.done()
    assert s.requeue(names[bodies[0]]) > 0
    assert (order := s.take("close", 10)).payload == bodies[0] and order.attempt == 1
    order.done()
    assert tool(url, "purge", "--all", "--queue", "close", "--yes") == [{"purged": 1, "failed": 0}]
    assert s.stats()["dead"] == 0
