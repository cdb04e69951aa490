"""The command-line tool on a store in RabbitMQ: dead letters of each reason, and what a pipe cannot do;
with ticket= every command."""

import json
import os
import subprocess
import sys
from urllib.parse import quote

import lapse
import pytest
from consumer import Consumer
from support import PATIENCE, of_debian, until

pika = of_debian("pika")
from rabbitmq_server import Server  # noqa: E402: it needs pika
from rabbitmq_deaths import REASONS, make  # noqa: E402: it needs pika

SERVER = Server
DONE, NO, STORE = 0, 1, 3  # exit codes
OURS = {"rejected": "rejected", "expired": "expired", "maxlen": "maxlen", "delivery_limit": "lost"}


@pytest.fixture
def kept(server, tmp_path):
    return f"{server.place()}&ticket={quote(f'sqlite:///{tmp_path}/orders.db?keep=1h', safe='')}"


def tool(url, *words, code=DONE):
    """What it prints: an object for each line."""
    ran = subprocess.run(
        [sys.executable, "-m", "lapse", *words, "--json"],
        env={**os.environ, "LAPSE_URL": url}, capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ran.returncode == code, ran
    return [json.loads(line) for line in ran.stdout.splitlines()]


def dead(url, *words):
    return {line["id"]: line for line in tool(url, "dead", *words)}


# -- By itself ---------------------------------------------------------------------------------------


def test_each_of_the_brokers_reasons_is_listed_and_requeued(server, url):
    make(url)
    found = dead(url)
    assert {id: line["reason"] for id, line in found.items()} == OURS
    for id, line in found.items():
        assert line["queue"] == "q" and line["payload_bytes"] == 1 + len(id)
        assert f"RabbitMQ: {id} in " in line["error"]
    assert sorted(dead(url, "--reason", "lost")) == ["delivery_limit"]
    tool(url, "requeue", "rejected", "expired")
    tool(url, "requeue", "--all", "--reason", "lost")
    assert sorted(dead(url)) == ["maxlen"]
    tool(url, "requeue", "--all", "--queue", "q")
    tool(url, "requeue", "nobody", code=NO)
    assert dead(url) == {}
    seen = []
    with lapse.Scheduler(url, workers=1) as s:
        s.handle("q", lambda o: seen.append((o.id, o.attempt, o.payload)))
        until(lambda: len(seen) == len(REASONS))
    assert sorted(seen) == [(id, 1, b"\0" + id.encode()) for id in sorted(REASONS)]


def test_each_of_our_reasons_is_listed_requeued_and_purged(url):
    attempts = {"failed": 2, "rejected": 1, "lost": 1}
    with lapse.Scheduler(url + "&lease=1s", workers=1, on_error=lambda *_: None) as s:

        @s.handler("q", attempts=2, backoff=0.01)
        def close(order):
            if order == "rejected":
                raise lapse.Reject("no such order")
            raise ValueError("no gateway")

        tool(url, "schedule", "failed", "0", "--queue", "q", "--payload", "p")
        tool(url, "schedule", "rejected", "0", "--queue", "q")
        until(lambda: s.stats()["dead"] == 2)

        @s.handler("late", expires=1)
        def never(order):
            raise AssertionError

        s.pause("late")
        tool(url, "schedule", "expired", "0", "--queue", "late")
        begun = s.now()
        until(lambda: s.now() > begun + 1.2)
        s.resume("late")
        until(lambda: s.stats()["dead"] == 3)
    program = """
import lapse, os, signal, sys
s = lapse.Scheduler(sys.argv[1], workers=1)
s.handle("lost", lambda order: os.kill(os.getpid(), signal.SIGKILL), attempts=1)
signal.pause()
"""
    tool(url, "schedule", "lost", "0", "--queue", "lost")
    subprocess.run([sys.executable, "-c", program, url], timeout=PATIENCE, check=False)
    with lapse.Scheduler(url, workers=1) as s:
        s.handle("lost", lambda order: None, attempts=1)
        until(lambda: s.stats()["dead"] == 4)
    found = dead(url)
    assert {id: line["reason"] for id, line in found.items()} == {
        id: id for id in ("failed", "rejected", "expired", "lost")
    }
    assert {id: found[id]["attempt"] for id in attempts} == attempts
    assert "no gateway" in found["failed"]["error"] and found["failed"]["payload_bytes"] == 1
    assert found["rejected"]["error"] == "no such order"
    assert tool(url, "purge", "rejected") and sorted(dead(url)) == ["expired", "failed", "lost"]
    tool(url, "requeue", "failed", "--delay", "100ms")
    with Consumer(url) as c:
        until(lambda: c.ids() == ["failed"])
    tool(url, "requeue", "--all")
    with Consumer(url, "late") as late, Consumer(url, "lost") as lost:
        until(lambda: late.ids() == ["expired"] and lost.ids() == ["lost"])
    assert dead(url) == {}


def test_what_a_pipe_cannot_do_is_said(url):
    tool(url, "schedule", "o", "1h", "--queue", "q")
    for words in (
        ["cancel", "o"],
        ["get", "o"],
        ["reschedule", "o", "1h"],
        ["list"],
        ["schedule", "o", "1h", "--queue", "q", "--replace"],
    ):
        (line,) = tool(url, *words, code=STORE)
        assert line["error"] == "Unsupported" and "ticket" in line["detail"], words
    assert tool(url, "stats") and tool(url, "check")[0]["healthy"] is True


# -- With a store that keeps the orders -----------------------------------------------------------------


def test_with_a_ticket_every_command_answers(kept):
    tool(kept, "schedule", "o", "1h", "--queue", "q", "--payload", "p")
    tool(kept, "schedule", "o", "1h", "--queue", "q", code=NO)
    (order,) = tool(kept, "get", "o")
    assert (order["state"], order["queue"], order["payload"]) == ("pending", "q", "p")
    assert [line["id"] for line in tool(kept, "list")] == ["o"]
    tool(kept, "reschedule", "o", "2h")
    assert 7100 < tool(kept, "get", "o")[0]["remaining_seconds"] <= 7201
    assert tool(kept, "cancel", "o")[0]["fate"] == "cancelled"
    assert tool(kept, "cancel", "o", code=NO)[0]["fate"] == "done"
    assert tool(kept, "list", "--state", "pending,running") == [] and tool(kept, "check")[0]["healthy"] is True
    with Consumer(kept) as c:
        tool(kept, "schedule", "now", "0", "--queue", "q")
        until(lambda: c.ids() == ["now"])
