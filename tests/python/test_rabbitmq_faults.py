"""The RabbitMQ store while the link drops, the broker dies, refuses or closes a channel."""

import subprocess
import sys
import threading
import time

import lapse
import pytest
import server_cases
from consumer import Consumer, Worker, place, try_schedule
from support import PATIENCE, TIER, of_debian, rounds, until

of_debian("pika")
from rabbitmq_server import Server, prefix_of  # noqa: E402: it needs pika

TIMEOUT = 10.0  # seconds: the broker's patience with what is not acknowledged


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Server(
        tmp_path_factory.mktemp("rabbitmq"),
        f"consumer_timeout={round(TIMEOUT * 1000)}",
        "channel_tick_interval=500",
        "dead_letter_worker_publisher_confirm_timeout=2000",
    )
    yield s
    s.stop()


# -- The link ---------------------------------------------------------------------------------


@server_cases.OUTAGES
def test_p62_refused_for_a_while(proxy, through, caplog, seconds):
    server_cases.refused_for_a_while(proxy, through, caplog, seconds)


def test_p62_the_first_connection_fails(proxy, through):
    server_cases.the_first_connection_fails(proxy, through)


def test_a_refused_connection_says_where_and_what_to_do(proxy, through):
    proxy.refuse()
    port = through.split(":")[3].split("/")[0]
    with pytest.raises(lapse.Offline, match=f"127.0.0.1.*:{port} cannot be reached.*refused.*port"):
        lapse.Scheduler(through)


def test_cut_again_and_again_loses_nothing(proxy, through):
    """What was answered runs; what was not known runs or does not."""
    with Consumer(through) as c:
        known = server_cases.cut_again_and_again(proxy, c, rounds(3, 6, 50), 0.1)
        assert set(c.ids()) <= known and min(late for _, late, _ in c.ran) >= 0
        print(f"{len(c.ids()) - len(set(c.ids()))} of {len(c.ids())} runs more than once")


def test_a_turn_that_takes_long_keeps_the_link(proxy, through):
    """Large orders, each confirmed before the next is sent: meanwhile the other connection, by which
    an order is held, has to say that it lives."""
    entered, leave, held = threading.Event(), threading.Event(), []
    with lapse.Scheduler(through + "&heartbeat=1s&timeout=20s&lease=2m", workers=1) as s:

        @s.handler("slow")
        def slow(order):
            entered.set()
            assert leave.wait(PATIENCE)
            held.append((order.attempt, s.holds(order)))

        s.schedule("warm", 3600, queue="q")
        s.schedule("slow", 0, queue="slow")
        assert entered.wait(PATIENCE)
        proxy.delay = 0.1
        began = time.monotonic()
        large = b"x" * 300_000
        results = s.schedule_many([(f"o{n}", 3600, None, large, "q") for n in range(8)])
        took = time.monotonic() - began
        proxy.delay = 0.0
        leave.set()
        until(lambda: held)
        assert all(isinstance(r, int) for r in results) and took > 3
        assert held == [(1, True)]


def test_a_child_that_was_forked_does_not_keep_its_parent_busy(proxy, through):
    """It has the sockets still, of which the parent hears no more."""
    program = """
import lapse, os, sys, time
s = lapse.Scheduler(sys.argv[1], workers=1)
ran = []
s.handle("q", lambda order: ran.append(order.id))
s.schedule("before", 0, queue="q")
end, other = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(other)
    os.read(end, 1)
    os._exit(0)
print("up", flush=True)
sys.stdin.readline()
while "after" not in ran:
    try:
        s.schedule("after", 0, queue="q")
    except (lapse.Offline, lapse.Unsure):
        pass
    time.sleep(0.01)  # sleeps: between two tries
used = time.process_time()
time.sleep(2)  # sleeps: as long as it would spin
print(time.process_time() - used, flush=True)
s.close()
os.close(other)
os.waitpid(pid, 0)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program, through],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert parent.stdout.readline() == "up\n"
        proxy.cut()
        said, _ = parent.communicate("go on\n", timeout=2 * PATIENCE)
    finally:
        parent.kill()
        parent.wait()
    assert parent.returncode == 0
    assert float(said) < 0.5, "it spins"


def test_a_stalled_link_is_not_known_and_not_waited_for(proxy, through):
    with lapse.Scheduler(through + "&timeout=300ms&lease=4s", workers=0) as s:
        server_cases.a_stalled_link_is_not_waited_for(proxy, s)


# -- The broker is killed -------------------------------------------------------------------------


def declare(s, delays):
    """Have the queues for these delays made. RabbitMQ writes what was declared to the disk within two
    seconds: one that is killed before has lost the queue, with what was confirmed in it."""
    results = s.schedule_many([(f"early{n}", d, None, None, "q") for n, d in enumerate(delays)])
    assert all(isinstance(r, int) for r in results), results
    time.sleep(3)  # sleeps: the broker's time


def until_all_ran(c, count):
    """So many different ones, for as long as more come."""
    seen, looked = set(), 0
    while True:
        more = [id for id, _, _ in c.ran[looked:]]
        looked += len(more)
        seen.update(more)
        if len(seen) >= count:
            return
        until(lambda n=looked: len(c.ran) > n)


def test_p67_a_killed_broker_loses_nothing_that_was_accepted(server, url):
    """Some fall due while it is down; none starts early, all run at least once."""
    count = rounds(500, 2000, 10000)
    with Consumer(url) as c:
        declare(c.s, [0.5 + 9.5 * n / 500 for n in range(500)])
        for i in range(0, count, 500):
            size = min(500, count - i)
            delays = [(f"o{i + n}", 0.5 + 9.5 * n / size, None, None, "q") for n in range(size)]
            results = c.s.schedule_many(delays)
            assert all(isinstance(r, int) for r in results)
        server.kill()
        time.sleep(1)  # sleeps: it stays down while some fall due
        server.start()
        count += 500
        until_all_ran(c, count)
        assert set(c.ids()) == {f"o{n}" for n in range(count - 500)} | {f"early{n}" for n in range(500)}
        late = sorted(late for _, late, _ in c.ran)
        assert late[0] >= 0
        print(
            f"{len(late) - count} of {count} ran more than once; "
            f"late by {late[count // 2]:.1f} s in the middle, {late[-1]:.1f} s at most"
        )
        try_schedule(c.s, "after")
        until(lambda: "after" in c.ids())


@pytest.mark.skipif(TIER != "soak", reason="a hundred thousand orders")
def test_p67_a_hundred_thousand_and_a_killed_broker(server, url):
    count = 100_000
    with lapse.Scheduler(url, workers=0) as s:
        declare(s, [60 + n for n in range(60)])
        began = time.monotonic()
        for i in range(0, count, 1000):
            results = s.schedule_many(
                [(f"o{i + n}", 60 + (i + n) % 60, None, None, "q") for n in range(1000)]
            )
            assert all(isinstance(r, int) for r in results)
        print(f"{count} scheduled in {time.monotonic() - began:.0f} s")
        server.kill()
        down = max(5, began + 65 - time.monotonic())
        time.sleep(down)  # sleeps: it stays down while some fall due
        server.start()
    with Consumer(url) as c:
        until_all_ran(c, count + 60)
        assert min(late for _, late, _ in c.ran) >= 0
        assert len(set(c.ids())) == count + 60


def test_p67_the_plug_in_is_not_needed(server):
    assert server.ctl("eval", "rabbit_plugins:active().") == "[]"


def test_p61_a_consumer_alone_delivers_what_is_overdue(server, url):
    """Nobody schedules anything; the broker was away too."""
    with lapse.Scheduler(url, workers=0) as s:
        declare(s, [0.5] * 100)
        place(s, "o", 100, 0.5)
    server.kill()
    time.sleep(1)  # sleeps: all fall due meanwhile
    server.start()
    program = """
import lapse, os, sys
s = lapse.Scheduler(sys.argv[1], workers=2)
s.handle("q", lambda order: os.write(1, b"%s %f\\n" % (order.id.encode(), order.late)) and None)
sys.stdin.read()
s.close()
"""
    consumer = Worker(url, program)
    lines = consumer.lines
    try:
        until(lambda: len({words[0] for words in list(lines)}) == 200)
    finally:
        consumer.end()
    assert consumer.process.returncode == 0
    names = {f"{name}{n}" for n in range(100) for name in ("early", "o")}
    assert {words[0].decode() for words in lines} == names
    assert all(float(words[1]) >= 0.4 for words in lines)


# -- Somebody deletes a queue -----------------------------------------------------------------------


@pytest.mark.parametrize("others", [1, 70])
def test_a_deleted_queue_costs_nothing_that_is_held_of_others(server, url, others):
    """Nobody consumes it at that moment, so that the broker tells nobody: whoever asks finds out, and
    loses the channel by it."""
    with lapse.Scheduler(url + "&lease=2m", workers=0) as s:
        names = [f"other{n}" for n in range(others)]
        for name in names:
            s.schedule(f"of {name}", 0, queue=name)
        held = [s.take(name, PATIENCE) for name in names]
        assert [str(order) for order in held] == [f"of {name}" for name in names]
        s.schedule("before", 0, queue="q")
        s.take("q", PATIENCE).done()
        work = f"{prefix_of(url)}.work.q"
        until(lambda: server.queues("consumers")[work] == ["0"])
        with server.connect() as connection:
            connection.channel().queue_delete(work)
        assert s.take("q", 0.5) is None
        assert [s.holds(order) for order in held] == [True] * others
        s.schedule("after", 0, queue="q")
        assert (after := s.take("q", PATIENCE)) == "after"
        after.done()
        for order in held:
            order.done()
        until(lambda: s.stats()["done"] == others + 2)
        assert s.stats()["pending"] == s.stats()["running"] == s.stats()["stale"] == 0


# -- The broker refuses, and loses its patience ----------------------------------------------------------


def test_a_lease_that_cannot_be_ended_does_not_keep_the_driver_busy(server, url):
    """What would take its place is refused, since the queue is full."""
    with lapse.Scheduler(url + "&lease=1s", workers=0) as s:
        s.schedule("o", 0, queue="q")
        claim = s.take("q", PATIENCE)
        assert claim == "o"
        work = f"{prefix_of(url)}.work.q"
        server.ctl("set_policy", work, f"^{work}$".replace(".", "\\."), '{"max-length": 1}')
        try:
            with pytest.raises(lapse.Full):
                for n in range(1000):
                    s.schedule(f"o{n}", 0, queue="q")
            until(lambda: not s.holds(claim))
            used = time.process_time()
            time.sleep(3)  # sleeps: it would be tried thousands of times
            assert time.process_time() - used < 0.75, "it spins"
        finally:
            server.ctl("clear_policy", work)
        seen = set()

        def take():
            if (other := s.take("q", 0.1)) is not None:
                seen.add((str(other), other.attempt))
                other.done()

        # On a slow machine the broker's patience has ended, too, and that counts as well.
        until(lambda: take() or any(id == "o" and attempt > 1 for id, attempt in seen))


def test_a_consumer_that_the_broker_gave_up_on_is_back(server, url, caplog):
    """consumer_timeout is 10 s: a callback that takes longer loses its channel, and nothing else
    is held so long; consuming goes on within 2 s of the channel's end."""
    entered, leave = threading.Event(), threading.Event()
    ran, lock = [], threading.Lock()
    with lapse.Scheduler(url, workers=3) as s:  # The slow order is delivered twice.

        @s.handler("slow", attempts=2)
        def slow(order):
            entered.set()
            leave.wait(2 * TIMEOUT)

        def quick(order):
            with lock:
                ran.append((str(order), time.monotonic()))

        s.handle("quick", quick)
        s.schedule("slow", 0, queue="slow")
        assert entered.wait(PATIENCE)
        began = time.monotonic()
        n, end = 0, began + TIMEOUT + 5
        gaps = []
        while time.monotonic() < end:
            asked = time.monotonic()
            try_schedule(s, f"n{n}", 0, queue="quick")
            until(lambda n=n: len({id for id, _ in ran}) == n + 1)
            gaps.append(time.monotonic() - asked)
            n += 1
            time.sleep(0.1)  # sleeps: a shop that is not busy, as long as the broker's patience
        leave.set()
        print(f"{n} orders beside it, the slowest took {max(gaps):.2f} s")
        if TIER == "soak":
            assert max(gaps) < 2
        assert {id for id, _ in ran} == {f"n{i}" for i in range(n)}


def test_nothing_is_held_while_no_worker_is_free(server, url):
    """One worker, a backlog that takes longer than the broker's patience: its channel lives on."""
    held = []
    with lapse.Scheduler(url, workers=1) as s:
        started, leave = threading.Event(), threading.Event()

        def close(order):
            started.set()
            assert leave.wait(PATIENCE)

        s.handle("q", close)
        place(s, "o", 50, 0)
        assert started.wait(PATIENCE)
        for _ in range(3):
            row = server.queues("messages_unacknowledged")[f"{prefix_of(url)}.work.q"]
            held.append(int(row[0]))
        leave.set()
        until(lambda: s.stats()["done"] == 50)
    assert max(held[1:]) <= 2, held
