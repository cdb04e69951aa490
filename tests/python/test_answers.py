"""cancel, reschedule and schedule again: who wins, and what each side is told."""

import random
import threading
import time

import lapse
import pytest
from lapse import Fate
from support import Story, in_threads, rounds, until


def nop(order):
    pass


def test_p20_one_winner():
    per_thread = rounds(60, 500, 125_000)
    answers: dict[str, list[Fate]] = {}
    runs: dict[str, list[int]] = {}

    def count(order):
        runs[order].append(1)

    with lapse.Scheduler(workers=2) as s:

        def one_thread(number):
            dice = random.Random(number)
            for i in range(per_thread):
                order_id = f"{number}/{i}"
                runs[order_id] = []
                s.schedule(order_id, dice.uniform(0, 0.002), count)
                end = time.perf_counter() + dice.uniform(0, 0.0025)
                while time.perf_counter() < end:
                    pass
                answers[order_id] = [s.cancel(order_id), s.cancel(order_id)]

        in_threads(8, one_thread)
        until(lambda: s.stats()["pending"] + s.stats()["running"] == 0)
    assert len(answers) == 8 * per_thread
    for order_id, (first, second) in answers.items():
        assert len(runs[order_id]) == (0 if first is Fate.CANCELLED else 1), (order_id, first)
        assert first in (Fate.CANCELLED, Fate.RUNNING, Fate.UNKNOWN)
        assert second in (Fate.RUNNING, Fate.UNKNOWN)


def test_p21_after_cancel_wait_nothing_runs():
    with lapse.Scheduler(workers=2) as s:
        for _ in range(rounds(50, 500, 10_000)):
            alive, starts = [True], []

            def touch(order, alive=alive, starts=starts):
                starts.append(1)
                assert alive[0]
                s.schedule("k", 0, touch, replace=True)
                assert alive[0]

            s.schedule("k", 0, touch)
            while s.cancel_wait("k", 10) in (Fate.RUNNING, Fate.CANCELLED):
                pass
            alive[0] = False
            seen = len(starts)
            assert s.get("k") is None
            assert len(starts) == seen


def test_cancel_wait_times_out_and_then_waits():
    go, started = threading.Event(), threading.Event()
    with lapse.Scheduler() as s:
        s.schedule("slow", 0, lambda order: (started.set(), go.wait(30)))
        assert started.wait(30)
        with pytest.raises(lapse.Timeout) as caught:
            s.cancel_wait("slow", 0.01)
        assert isinstance(caught.value, TimeoutError)
        threading.Timer(0.02, go.set).start()
        assert s.cancel_wait("slow") is Fate.RUNNING
        assert s.get("slow") is None
        assert s.cancel_wait("slow") is Fate.UNKNOWN
        assert s.cancel_wait("a\0b") is Fate.UNKNOWN


def test_p22_the_count_is_exact():
    go, started = threading.Event(), threading.Event()
    with lapse.Scheduler(max_pending=20, clock=(clock := lapse.ManualClock())) as s:
        s.schedule("slow", 0.05, lambda order: (started.set(), go.wait(30)))
        for i in range(10):
            s.schedule(f"n{i}", 0.05, nop)
        clock.advance(0.05)
        assert started.wait(30)
        assert all(s.cancel(f"n{i}") is Fate.CANCELLED for i in range(10))
        assert (s.stats()["pending"], s.stats()["running"]) == (0, 1)
        go.set()
        until(lambda: s.stats()["running"] == 0)
        for i in range(20):
            s.schedule(f"m{i}", 9, nop)
        with pytest.raises(lapse.Full):
            s.schedule("m20", 9, nop)
        assert s.stats()["pending"] == 20
        assert all(s.cancel(f"m{i}") for i in range(20))
        assert s.stats()["pending"] == 0


def test_p23_cancel_does_not_wait_for_the_callback():
    lock, entered = threading.Lock(), threading.Event()

    def wants_the_lock(order):
        entered.set()
        with lock:
            pass

    with lapse.Scheduler() as s:
        with lock:
            s.schedule("c", 0, wants_the_lock)
            assert entered.wait(30)
            start = time.monotonic()
            assert s.cancel("c") is Fate.RUNNING
            assert time.monotonic() - start < 1  # it would wait for ever
        answers = []
        s.schedule("self", 0, lambda order: answers.append(s.cancel_wait(order)))
        until(lambda: answers)
        assert answers == [Fate.RUNNING]


def test_p23_callbacks_use_their_own_and_other_schedulers():
    end = time.monotonic() + rounds(0, 2, 60)
    wanted = rounds(300, 3000, 3000)
    ran = []
    with lapse.Scheduler(workers=2) as a, lapse.Scheduler(workers=2) as b:

        def hop(order):
            ran.append(1)
            other = b if order.startswith("a") else a
            name = ("b" if order.startswith("a") else "a") + order[1:]
            if len(ran) < wanted or time.monotonic() < end:
                other.schedule(name, 0, hop, replace=True)
            other.reschedule(name, 0)
            a.cancel(order)
            b.get(order)
            a.stats()

        for i in range(4):
            a.schedule(f"a{i}", 0, hop)
        until(lambda: not any(x.stats()["pending"] + x.stats()["running"] for x in (a, b)))
    assert len(ran) >= wanted


@pytest.mark.parametrize("delay", [0, -5])
def test_p24_zero_delay_belongs_to_the_next_pass(story, delay):
    def again(order):
        story.mark(order)
        story.s.schedule("a", delay, again)

    story.s.schedule("a", delay, again)
    story.s.schedule("b", 0.02, story.mark)
    for n in range(20):
        assert story.at(n / 1000) == ["a"]
    assert sorted(story.at(0.02)) == ["a", "b"]


def test_p24_zero_delay_starves_nobody_and_stop_returns():
    ran, ran_b = [], threading.Event()
    with lapse.Scheduler() as s:

        def again(order):
            ran.append(1)
            s.schedule("a", 0, again)

        errors = []
        s.on_error = lambda order, error: errors.append(error)
        start = time.monotonic()
        s.schedule("a", 0, again)
        s.schedule("b", 0.02, lambda order: ran_b.set())
        assert ran_b.wait(30)
        until(lambda: len(ran) > 20)
        before_stop = time.monotonic()
        s.stop()
        assert time.monotonic() - before_stop < 1
        elapsed = time.monotonic() - start
    assert len(ran) <= elapsed / Story.TICK + 2
    assert all(isinstance(error, lapse.Closed) for error in errors) and len(errors) <= 1


def test_p26_from_inside(story):
    s, answers = story.s, []

    def cancel_self(order):
        answers.append(s.cancel(order))

    def rearm_and_cancel(order):
        story.mark(order)
        answers.append(s.reschedule(order, 0.01))
        answers.append(s.cancel(order))

    def close_inside(order):
        with pytest.raises(lapse.InCallback):
            s.close()
        answers.append("refused")
        s.schedule("after", 0, story.mark)

    s.schedule("s", 0.01, cancel_self)
    s.schedule("u", 0.02, rearm_and_cancel)
    s.schedule("d", 0.03, close_inside)
    assert story.at(0.01) == [] and answers == [Fate.RUNNING]
    assert story.at(0.02) == ["u"] and answers[1:] == [Fate.RUNNING, Fate.RUNNING]
    assert story.at(0.025) == []
    assert story.at(0.03) == [] and answers[-1] == "refused"
    assert story.at(0.031) == ["after"]

    s.schedule("stop", 0, lambda order: s.stop())
    s.schedule("never", 0, story.mark)
    assert story.at(0.032) == []
    with pytest.raises(lapse.Closed):
        s.process()
    assert [info.id for info in s.orders(lapse.State.PENDING)] == ["never"]


def test_p26_close_and_stop_inside_a_workers_callback():
    answers = []
    s = lapse.Scheduler()

    def inside(order):
        try:
            s.close(1)
        except lapse.InCallback as error:
            answers.append(error.code)
        s.stop()
        answers.append("stopped")

    s.schedule("d", 0, inside)
    until(lambda: len(answers) == 2)
    assert answers == [lapse.InCallback.code, "stopped"]
    s.close()
    assert s.closed


def test_p29_max_pending_is_exact():
    limit = rounds(2_000, 20_000, 100_000)
    accepted, full = [], []

    with lapse.Scheduler(max_pending=limit) as s:

        def fill(number):
            for i in range(limit // 4):
                order_id = f"{number}/{i}"
                try:
                    s.schedule(order_id, 600, nop)
                    accepted.append(order_id)
                except lapse.Full:
                    full.append(order_id)

        in_threads(8, fill)
        assert (len(accepted), len(full)) == (limit, limit)
        assert all(s.cancel(order_id) for order_id in accepted[:10])
        results = s.schedule_many([(f"again{i}", 600, nop) for i in range(50)])
        assert sum(isinstance(r, int) for r in results) == 10
        assert sum(isinstance(r, lapse.Full) for r in results) == 40
        s.stop()


def test_p31_stop_closes_the_door():
    ran, accepted, refused = [], [], []
    stopped = threading.Event()
    before = set(threading.enumerate())
    s = lapse.Scheduler(workers=2)
    for i in range(1000):
        accepted.append(order_id := f"p{i}")
        s.schedule(order_id, 3600 if i % 2 else 0.01, ran.append)

    def add(number):
        dice, i = random.Random(number), 0
        while True:
            order_id = f"{number}/{i}"
            i += 1
            try:
                s.schedule(order_id, dice.uniform(0, 0.05), ran.append)
                accepted.append(order_id)
            except lapse.Closed:
                refused.append(number)
                return
            if i % 100 == 0:
                time.sleep(0.001)  # sleeps: leaves the workers some time to run

    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(accepted) > 1500)
    s.stop()
    stopped.set()
    for thread in threads:
        thread.join()
    until(lambda: s.stats()["running"] == 0)
    left = {info.id for info in s.orders()}
    assert sorted(refused) == [0, 1, 2, 3]
    assert left | set(ran) == set(accepted) and not left & set(ran)
    assert len(ran) == len(set(ran)) and len(left) >= 500
    with pytest.raises(lapse.Closed):
        s.schedule("x", 1, nop)
    with pytest.raises(lapse.Closed):
        s.reschedule("p1", 1)
    s.stop()
    assert s.cancel("p1") is Fate.CANCELLED
    s.close()
    s.close()
    s.stop()
    assert s.cancel("p3") is Fate.UNKNOWN
    with pytest.raises(lapse.Closed):
        s.schedule("x", 1, nop)
    assert set(threading.enumerate()) <= before


def test_p53_the_same_id_again(story):
    s = story.s
    first = s.schedule("X", 5, story.mark, payload=b"1")
    with pytest.raises(lapse.Exists):
        s.schedule("X", 1, story.mark)
    assert s.get("X").remaining == 5 and s.get("X").generation == first
    old = []
    s.schedule("Y", 1, old.append)
    second = s.schedule("X", 2, story.mark, payload=b"2", replace=True)
    s.schedule("Y", 2, story.mark, replace=True)
    assert second > first and s.get("X").remaining == 2
    assert s.cancel("X", first) is Fate.UNKNOWN
    assert s.reschedule("X", 9, generation=first) is Fate.UNKNOWN
    assert s.reschedule("X", 3, second) is Fate.RESCHEDULED
    assert story.at(2) == ["Y"] and old == []
    assert story.at(3) == ["X"] and story.ran[-1].payload == b"2"
    third = s.schedule("X", 1, story.mark)  # ended: free at once
    assert third > second and s.cancel("X", third) is Fate.CANCELLED
    s.schedule("X", 1, story.mark)
    assert s.cancel("X") and s.schedule("X", 1, story.mark)


def test_p53_while_it_runs_the_next_generation_is_made(story):
    def again(order):
        story.mark(order)
        if len(story.ran) == 1:
            new = story.s.schedule("X", 1, again)
            assert new > order.generation
            assert story.s.cancel("X", order.generation) in (Fate.RUNNING, Fate.UNKNOWN)
            raise lapse.Retry(0)  # stale: the next generation has taken over

    story.s.schedule("X", 0, again)
    assert story.at(0) == ["X"]
    assert story.at(0.5) == []
    assert story.at(1) == ["X"] and story.ran[1].attempt == 1
    assert story.at(9) == [] and story.pending == 0


def test_keep_remembers_what_is_done():
    story = Story(keep=60)
    story.s.schedule("o", 1, story.mark)
    story.s.schedule("c", 1, story.mark)
    assert story.s.cancel("c")
    story.at(1)
    assert story.s.cancel("o") is Fate.DONE and not story.s.cancel("o")
    assert story.s.get("o").state is lapse.State.DONE
    story.at(62)
    assert story.s.cancel("o") is Fate.UNKNOWN


def test_fate_is_true_when_it_was_done():
    assert [fate.name for fate in Fate if fate] == ["CANCELLED", "RESCHEDULED"]
