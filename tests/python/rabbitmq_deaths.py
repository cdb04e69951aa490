"""Put one dead letter for each of the broker's reasons into a store in RabbitMQ: `python3
rabbitmq_deaths.py URL`. Each is an order of lapse's that a shop's own queue, which hands what it gives up to
our dead letters, has had: the id is the reason, the payload \\0 and the reason, the queue is "q". pika is
the shop."""

from __future__ import annotations

import sys
import time

import lapse
import pika

TTL, LIMIT, MOST = {"x-message-ttl": 1}, {"x-delivery-limit": 1}, {"x-max-length": 1}
REASONS = {"rejected": {}, "expired": TTL, "maxlen": MOST, "delivery_limit": LIMIT}
PATIENCE = 60.0


def get(channel, queue):
    end = time.monotonic() + PATIENCE
    while True:
        got = channel.basic_get(queue)
        if got[0] is not None:
            return got
        assert time.monotonic() < end, f"nothing comes to {queue}"
        time.sleep(0.01)  # sleeps: the broker moves it


def make(url: str) -> None:
    prefix = url.split("prefix=")[1].split("&")[0]
    with lapse.Scheduler(url, workers=0) as s:
        for reason in REASONS:
            s.schedule(reason, 0, queue="q", payload=b"\0" + reason.encode())
    with pika.BlockingConnection(pika.URLParameters(url.split("?")[0])) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for reason, arguments in REASONS.items():
            channel.queue_declare(
                f"{prefix}-{reason}",
                durable=True,
                arguments={
                    "x-queue-type": "quorum",
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": f"{prefix}.dead",
                    **arguments,
                },
            )
        for _ in REASONS:
            method, properties, body = get(channel, f"{prefix}.work.q")
            channel.basic_publish("", f"{prefix}-{properties.message_id}", body, properties)
            channel.basic_ack(method.delivery_tag)
        channel.basic_publish("", f"{prefix}-maxlen", b"the next one, for which the first gives way")
        channel.basic_reject(get(channel, f"{prefix}-rejected")[0].delivery_tag, requeue=False)
        for _ in range(2):
            again = get(channel, f"{prefix}-delivery_limit")[0]
            channel.basic_reject(again.delivery_tag, requeue=True)
    with lapse.Scheduler(url, workers=0) as s:
        end = time.monotonic() + PATIENCE
        while s.stats()["dead"] < len(REASONS):
            assert time.monotonic() < end, "the broker has not given up all of them"
            time.sleep(0.01)  # sleeps: the broker moves them


if __name__ == "__main__":
    make(sys.argv[1])
