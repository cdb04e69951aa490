"""Threads, signals and waits: nobody holds the GIL while it waits, nobody waits for itself."""

import gc
import os
import select
import signal
import statistics
import sys
import threading
import time

import lapse
import pytest
from support import PATIENCE, in_threads, rounds, until


def signal_mask(thread_id: int) -> int:
    with open(f"/proc/self/task/{thread_id}/status") as f:
        return int(next(line for line in f if line.startswith("SigBlk")).split()[1], 16)


def blocks(mask: int, signum: int) -> bool:
    return bool(mask >> (signum - 1) & 1)


HOST_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1]


def test_p33_signals_go_to_the_host():
    handled = []
    old = {n: signal.signal(n, lambda *a: handled.append(a[0])) for n in HOST_SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with lapse.Scheduler(workers=2) as s:
            inside = []
            s.schedule("mask", 0, lambda o: inside.append(signal.pthread_sigmask(0, [])))
            until(lambda: inside)
            assert inside == [mask]  # a callback, and what it starts, has the host's mask
            workers = [t for t in threading.enumerate() if t.name.startswith("lapse-")]
            assert len(workers) == 3  # two, and the one that watches over them
            for worker in workers:
                until(
                    lambda w=worker: all(
                        blocks(signal_mask(w.native_id), n) for n in HOST_SIGNALS
                    ),
                    "a worker that waits",
                )
            ran = []

            def busy(order):
                ran.append(1)
                s.schedule(order, 0, busy)

            s.on_error = lambda order, error: None
            s.schedule("busy", 0, busy)
            for _ in range(rounds(100, 1000, 10_000)):
                for n in HOST_SIGNALS:
                    seen = len(handled)
                    os.kill(os.getpid(), n)
                    until(lambda seen=seen: len(handled) > seen, "the handler")
                    assert handled[-1] == n
            until(lambda: ran)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    finally:
        for n, handler in old.items():
            signal.signal(n, handler)


@pytest.fixture
def busy_thread():
    """Another Python thread that never lets go of the GIL by itself."""
    end = threading.Event()

    def burn():
        while not end.is_set():
            sum(range(500))

    thread = threading.Thread(target=burn)
    old = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    thread.start()
    yield
    end.set()
    thread.join()
    sys.setswitchinterval(old)


def started(s):
    go = threading.Event()
    s.schedule("now", 0, lambda order: go.set())
    s.schedule("now2", 0, lambda order: None)
    return go


def by_del():
    s = lapse.Scheduler()
    started(s)
    del s


def by_collecting_a_cycle():
    s = lapse.Scheduler()
    ring = [s]
    s.schedule("ring", 3600, lambda order, ring=ring: ring)
    started(s)
    del s, ring
    gc.collect(0)


def by_stop():
    s = lapse.Scheduler()
    started(s)
    s.stop()


def by_with():
    with lapse.Scheduler() as s:
        started(s)


def by_close_after_it_ran():
    s = lapse.Scheduler(workers=2)
    assert started(s).wait(30)
    s.close(30)


WAYS = [by_del, by_collecting_a_cycle, by_stop, by_with, by_close_after_it_ran]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("thread", ["main", "other"])
def test_p36_letting_go_never_hangs(busy_thread, way, thread):
    took = []

    def let_go(number=0):
        for _ in range(rounds(15, 200, 1000)):
            start = time.monotonic()
            way()
            took.append(time.monotonic() - start)

    if thread == "main":
        let_go()
    else:
        in_threads(1, let_go)
    gc.collect()
    assert max(took) < PATIENCE and statistics.median(took) < 1
    until(lambda: not any(t.name.startswith("lapse-") for t in threading.enumerate()))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_p36_del_inside_a_callback_does_not_join_itself():
    for _ in range(rounds(20, 500, 5000)):
        box, ran = [lapse.Scheduler()], []

        def let_go(order, box=box, ran=ran):
            box.clear()
            gc.collect(0)
            ran.append(order)

        box[0].schedule("o", 0, let_go)
        until(lambda ran=ran: ran)


def test_close_names_who_still_runs():
    go, inside = threading.Event(), threading.Event()
    s = lapse.Scheduler()
    s.schedule("slow one", 0, lambda order: (inside.set(), go.wait(30)))
    assert inside.wait(30)
    for _ in range(2):
        with pytest.raises(lapse.Timeout, match="slow one"):
            s.close(0.01)
    assert not s.closed
    with pytest.raises(lapse.Closed):
        s.schedule("x", 1, print)
    threading.Timer(0.02, go.set).start()
    s.close(30)
    assert s.closed


def test_close_by_two_threads_at_once():
    for _ in range(rounds(20, 200, 2000)):
        s = lapse.Scheduler(workers=2)
        s.schedule("a", 0, lambda order: time.sleep(0.001))  # sleeps: a callback that takes time
        in_threads(3, lambda number, s=s: s.close())
        assert s.closed


class Interrupt:
    """Send a signal to this process after a while."""

    def __init__(self, signum=signal.SIGINT, after=0.05):
        self.timer = threading.Timer(after, os.kill, (os.getpid(), signum))

    def __enter__(self):
        self.start = time.monotonic()
        self.timer.start()
        return self

    def __exit__(self, *ignored):
        self.elapsed = time.monotonic() - self.start
        self.timer.join()


@pytest.fixture
def stuck():
    """A scheduler one of whose callbacks does not return before the test ends."""
    go, inside = threading.Event(), threading.Event()
    s = lapse.Scheduler()
    s.schedule("stuck", 0, lambda order: (inside.set(), go.wait(30)))
    assert inside.wait(30)
    yield s
    go.set()
    s.close()


@pytest.fixture
def idle():
    """A scheduler whose worker waits for work, as most do."""
    with lapse.Scheduler() as s:
        ran = []
        s.schedule("now", 0, ran.append)
        s.schedule("later", 3600, print)
        until(lambda: ran)
        yield s


WAITS = {
    "take": lambda s: s.take(timeout=60),
    "take without limit": lambda s: s.take(),
    "cancel_wait": lambda s: s.cancel_wait("stuck", 60),
    "cancel_wait without limit": lambda s: s.cancel_wait("stuck"),
    "close": lambda s: s.close(60),
    "close without limit": lambda s: s.close(),
    "run": lambda s: s.run(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_p41_ctrl_c_is_seen(stuck, wait):
    with Interrupt() as interrupt:
        with pytest.raises(KeyboardInterrupt):
            wait(stuck)
    assert interrupt.elapsed < 5
    assert stuck.get("stuck").state is lapse.State.RUNNING  # and it is still usable


@pytest.mark.parametrize("wait", ["take", "take without limit", "run"])
def test_p41_ctrl_c_is_seen_beside_a_waiting_worker(idle, wait):
    with Interrupt() as interrupt:
        with pytest.raises(KeyboardInterrupt):
            WAITS[wait](idle)
    assert interrupt.elapsed < 5
    assert idle.cancel("later")


def test_p41_a_handler_that_does_not_raise_lets_the_wait_go_on(stuck):
    flags = []
    old = signal.signal(signal.SIGUSR1, lambda *ignored: flags.append(1))
    try:
        waits = [
            (lambda: stuck.take(timeout=0.1), None),
            (lambda: stuck.cancel_wait("stuck", 0.1), lapse.Timeout),
            (lambda: stuck.close(0.1), lapse.Timeout),
        ]
        for n, (wait, error) in enumerate(waits, 1):
            with Interrupt(signal.SIGUSR1, 0.02) as interrupt:
                if error:
                    with pytest.raises(error):
                        wait()
                else:
                    assert wait() is None
            assert interrupt.elapsed >= 0.1 and len(flags) == n
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_a_waiting_worker_leaves_the_gil_alone():
    with lapse.Scheduler(workers=4) as s:
        s.schedule("later", 3600, print)
        count, end = 0, time.monotonic() + 0.02
        while time.monotonic() < end:
            count += 1
        assert count > 1000


def test_a_long_row_of_c_callbacks_lets_others_run():
    """list.append never lets go of the GIL; the worker does, between orders."""
    ran = []
    with lapse.Scheduler(clock=(clock := lapse.ManualClock())) as s:
        n = rounds(100_000, 300_000, 300_000)
        s.schedule_many([(f"{i}", 1, ran.append) for i in range(n)])
        seen = set()
        clock.advance(1)
        until(lambda: seen.add(len(ran)) or len(ran) == n)
        assert len(seen) > 2
        assert ran == [str(i) for i in range(n)]


def test_the_hosts_own_loop():
    with lapse.Scheduler(workers=0) as s:
        ran = []
        assert s.timeout() is None
        s.schedule("a", 0.02, ran.append)
        s.schedule("b", 0.01, ran.append)
        assert 0 < s.timeout() <= 0.021
        poll = select.poll()
        poll.register(s.fileno(), select.POLLIN)
        assert poll.poll(0) == [] and s.process() == 0
        while len(ran) < 2:
            assert poll.poll(30_000)
            s.process(max=1)
        assert ran == ["b", "a"] and s.fileno() == s.fileno()


def test_run_serves_until_stop():
    s, ran = lapse.Scheduler(workers=0), []

    def last(order):
        ran.append(order)
        s.stop()

    s.schedule("a", 0, ran.append)
    s.schedule("z", 0.02, last)
    s.run()
    assert ran == ["a", "z"]
    s.close()


def test_workers_start_with_the_first_callback():
    before = threading.active_count()
    with lapse.Scheduler(workers=3) as s:
        s.schedule("taken", 0)
        assert threading.active_count() == before
        s.schedule("run", 3600, print)
        assert threading.active_count() == before + 4  # and one that watches over them
        assert all(t.daemon for t in threading.enumerate() if t.name.startswith("lapse-"))
    assert threading.active_count() == before
