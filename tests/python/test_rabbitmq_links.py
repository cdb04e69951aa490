"""The two connections of a scheduler to RabbitMQ fail apart: one that publishes, one that consumes. The
broker closes them one by one, as an operator does."""

import logging
import os
import threading
from urllib.parse import quote

import lapse
import pytest
from consumer import Consumer, offline, place, try_schedule
from support import PATIENCE, of_debian, until

of_debian("pika")
from rabbitmq_server import Server  # noqa: E402: it needs pika

SERVER = Server


@pytest.fixture(params=["alone", "kept"])
def url(request, server, tmp_path):
    address = server.place()
    if request.param == "alone":
        return address
    return f"{address}&ticket={quote(f'sqlite:///{tmp_path}/orders.db', safe='')}"


def links(server):
    """All connections, by the broker's name for each: whether it consumes, or holds what it was sent."""
    consumes = dict.fromkeys(server.ctl("list_connections", "--no-table-headers", "pid").split(), False)
    columns = ("connection", "consumer_count", "messages_unacknowledged")
    for row in server.ctl("list_channels", "--no-table-headers", *columns).split("\n"):
        if row:
            pid, *counts = row.split("\t")
            consumes[pid] = consumes.get(pid, False) or any(map(int, counts))
    return consumes


def close(server, pid):
    server.ctl("close_connection", pid, "by the operator")


def close_those(server, consuming):
    """How many they were."""
    those = [pid for pid, consumes in links(server).items() if consumes is consuming]
    for pid in those:
        close(server, pid)
    return len(those)


def test_p62_connections_are_closed_one_by_one(server, url):
    """Of a consumer and of who schedules: what waits and what comes then starts once it can."""
    with Consumer(url) as c, lapse.Scheduler(url, workers=0) as s:
        place(s, "warm", 1, 0)
        until(lambda: c.ids() == ["warm0"])
        wanted = {"warm0"}
        for n, pid in enumerate(links(server)):
            place(s, f"before{n}-", 5, 1)
            close(server, pid)
            for scheduler in (s, c.s):
                try_schedule(scheduler, f"after{n}-{scheduler is s}")
            wanted |= {f"before{n}-{i}" for i in range(5)} | {f"after{n}-True", f"after{n}-False"}
            until(lambda: wanted <= set(c.ids()))
            until(lambda: offline(c.s) == offline(s) == 0)
        assert n >= 3, "two connections of each"
        assert set(c.ids()) == wanted and min(late for _, late, _ in c.ran) >= 0


def test_the_connection_that_publishes_is_closed_and_nothing_is_lost_to_hold(server, url):
    """What runs is held by the other one."""
    entered, leave, ran = threading.Event(), threading.Event(), []
    with lapse.Scheduler(url, workers=1) as s:

        @s.handler("q", attempts=5)
        def slow(order):
            entered.set()
            assert leave.wait(PATIENCE)
            ran.append((str(order), order.attempt, s.holds(order)))

        s.schedule("o", 0, queue="q")
        assert entered.wait(PATIENCE)
        assert close_those(server, consuming=False) >= 1
        try_schedule(s, "p", queue="q")
        leave.set()
        until(lambda: len(ran) == 2)
        until(lambda: s.stats()["done"] == 2)
        assert ran == [("o", 1, True), ("p", 1, True)]


def test_p59_the_connection_that_consumes_is_closed(server, url):
    """By itself RabbitMQ gives what it held to another at once; a store that keeps the orders does not."""
    entered, leave, held = threading.Event(), threading.Event(), []
    with lapse.Scheduler(url, workers=1) as first:

        @first.handler("q", attempts=5)
        def slow(order):
            entered.set()
            assert leave.wait(PATIENCE)
            held.append(first.holds(order))

        first.schedule("o", 0, queue="q")
        assert entered.wait(PATIENCE)
        assert close_those(server, consuming=True) == 1
        with lapse.Scheduler(url, workers=0) as second:
            if "ticket=" in url:
                assert second.take("q", 0.3) is None
                leave.set()
                until(lambda: held == [True])
                until(lambda: first.stats()["done"] == 1)
                return
            claim = second.take("q", PATIENCE)
            assert claim == "o" and claim.attempt == 2
            leave.set()
            until(lambda: held == [False])
            assert second.holds(claim)
            claim.done()
            assert first.stats()["dead"] == second.stats()["dead"] == 0


def test_p59_a_broker_that_stands_still_for_a_while(server, url):
    """A lease of one second, two of silence: who holds the order holds it still, and it runs once."""
    entered, leave, ran = threading.Event(), threading.Event(), []

    def slow(order):
        entered.set()
        assert leave.wait(PATIENCE)
        ran.append((str(order), order.attempt))

    with (
        lapse.Scheduler(url + "&lease=1s", workers=1) as a,
        lapse.Scheduler(url + "&lease=1s", workers=1) as b,
    ):
        a.handle("q", slow)
        a.schedule("o", 0, queue="q")
        assert entered.wait(PATIENCE)
        b.handle("q", slow)
        server.do("pause")
        try:
            assert not leave.wait(2)  # sleeps: as long as the case says
        finally:
            server.do("resume")
        leave.set()
        until(lambda: a.stats()["done"] + b.stats()["done"] == 1)
    assert ran == [("o", 1)]


def cpu(known):
    """Seconds that the threads have used of which Python knows nothing: the library's."""
    ticks = 0
    for task in os.listdir("/proc/self/task"):
        if int(task) in known:
            continue
        with open(f"/proc/self/task/{task}/stat") as stat:
            words = stat.read().rsplit(") ", 1)[1].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_p62_what_an_outage_costs(proxy, through, caplog):
    """Less than 2 % of a core, and less than that in the log."""
    seconds = 5
    with Consumer(through) as c:
        place(c.s, "o", 1, 0)
        until(lambda: c.ids() == ["o0"])
        proxy.refuse()
        until(lambda: "ticket=" in through or offline(c.s) > 0)
        caplog.set_level(logging.WARNING)
        threads = {t.native_id for t in threading.enumerate()}
        before = cpu(threads)
        assert not threading.Event().wait(seconds)  # sleeps: the outage lasts
        used = cpu(threads) - before
        print(f"{used / seconds:.2%} of a core")
        proxy.accept()
        try_schedule(c.s, "after")
        until(lambda: "after" in c.ids())
        assert used < 0.02 * seconds
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= 10
