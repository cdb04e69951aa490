"""on_dead, on_error for lost orders, the log; and who looks when callbacks hang."""

import gc
import logging
import sys
import threading
import time

import lapse
import pytest
from lapse import Fate, Reason, State
from support import PATIENCE, Story, in_threads, rounds, until


class Hang:
    """A callback that does not return before it is told to."""

    def __init__(self):
        self.inside = threading.Event()
        self.go = threading.Event()

    def __call__(self, order):
        self.inside.set()
        self.go.wait(2 * PATIENCE)


@pytest.fixture
def hang():
    callback = Hang()
    yield callback
    callback.go.set()


def messages(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "lapse"]


# -- Callbacks that hang --------------------------------------------------------------


def test_p27_one_hung_callback_among_four_workers(hang):
    ran, lock, count = [], threading.Lock(), rounds(1000, 1000, 10_000)

    def short(order):
        with lock:
            ran.append(order)

    with lapse.Scheduler(workers=4) as s:
        s.schedule("hung", 0, hang)
        assert hang.inside.wait(PATIENCE)
        s.schedule_many([(f"o{i}", 0.05 + i * 1e-5, short) for i in range(count)])
        s.schedule_many([(f"paid{i}", 60, short) for i in range(10)])
        until(lambda: len(ran) == count)
        assert all(s.cancel(f"paid{i}") is Fate.CANCELLED for i in range(10))
        assert max(order.late for order in ran) < 5  # not the minutes that it hangs
        assert s.cancel("hung") is Fate.RUNNING
        with pytest.raises(lapse.Timeout, match="hung"):
            s.close(0.05)
        hang.go.set()


def test_p27_the_rest_of_the_batch_can_still_be_cancelled(hang):
    """The orders that were due together with the one that hangs are not held by its worker."""
    clock, ran = lapse.ManualClock(), []
    with lapse.Scheduler(workers=1, clock=clock) as s:
        s.schedule("hung", 1, hang)
        for i in range(20):
            s.schedule(f"o{i}", 1, ran.append)
        clock.advance(1)
        assert hang.inside.wait(PATIENCE)
        assert [s.cancel(f"o{i}") for i in range(10)] == [Fate.CANCELLED] * 10
        assert s.stats()["pending"] == 10 and ran == []
        hang.go.set()
        until(lambda: len(ran) == 10)


@pytest.mark.parametrize("workers", [1, 4])
def test_p27_a_hung_callback_is_named(caplog, hang, workers):
    clock = lapse.ManualClock()
    with lapse.Scheduler(workers=workers, clock=clock, stuck_after=60) as s:
        s.schedule("OID-hung", 0, hang)
        clock.advance(0.001)
        assert hang.inside.wait(PATIENCE)
        clock.advance(59)
        s.stats()
        assert messages(caplog) == []
        clock.advance(2)
        until(lambda: messages(caplog), "the warning")
        assert len(messages(caplog)) == 1 and "OID-hung" in messages(caplog)[0]
        assert caplog.records[-1].levelno == logging.WARNING
        clock.advance(600)
        s.schedule("later", 3600, print)
        assert len(messages(caplog)) == 1  # once is enough
        hang.go.set()


def test_p27_a_hung_callback_is_named_in_real_time(caplog, hang):
    with lapse.Scheduler(stuck_after=0.05) as s:
        s.schedule("OID-hung", 0, hang)
        until(lambda: messages(caplog), "the warning")
        assert "OID-hung" in messages(caplog)[0]
        hang.go.set()


def test_a_handlers_own_stuck_after(caplog, hang):
    clock = lapse.ManualClock()
    with lapse.Scheduler("memory:?stuck_after=1h", clock=clock) as s:
        s.handle("q", hang, stuck_after=5)
        s.schedule("a", 0, queue="q")
        clock.advance(0.001)
        assert hang.inside.wait(PATIENCE)
        clock.advance(6)
        until(lambda: messages(caplog), "the warning")
        hang.go.set()


def test_nobody_wakes_while_nothing_runs():
    def switches():
        found = 0
        for thread in threading.enumerate():
            if thread.name.startswith("lapse-"):
                with open(f"/proc/self/task/{thread.native_id}/status") as status:
                    found += sum(int(x.split()[1]) for x in status if "ctxt_switches" in x)
        return found

    ran = threading.Event()
    with lapse.Scheduler(workers=2) as s:
        s.schedule("now", 0, lambda order: ran.set())
        s.schedule("far", 3600, print)
        assert ran.wait(PATIENCE)

        def nobody_wakes():
            before = switches()
            time.sleep(1.2)  # sleeps: the time in which nobody may wake
            return switches() == before

        until(nobody_wakes, "quiet, once the watcher has seen that nothing runs any more")


# -- Orders that are lost ------------------------------------------------------------------


def test_p63_a_worker_that_hangs_loses_its_order(caplog):
    """The attempt is counted before the callback starts, so one that kills it ends."""
    clock, errors, deaths = lapse.ManualClock(), [], []
    hangs = [Hang() for _ in range(3)]
    others = []
    with lapse.Scheduler(
        workers=4,
        clock=clock,
        on_error=lambda order, error: errors.append((order, error)),
        on_dead=lambda info, reason: deaths.append((info, reason)),
    ) as s:
        poisoned = []

        @s.handler("q", attempts=3, run_limit=10)
        def poison(order):
            poisoned.append((order.attempt, order.fence, s.holds(order)))
            hangs[order.attempt - 1](order)
            poisoned.append((order.attempt, order.fence, s.holds(order)))

        s.schedule("poison", 0, poison)
        for i in range(99):
            s.schedule(f"g{i}", 0, others.append)
        for hung in hangs:
            until(lambda hung=hung: clock.advance(0.001) or hung.inside.is_set())
            assert s.get("poison").state is State.RUNNING
            clock.advance(10)
        until(lambda: deaths, "the end of it")
        ((info, reason),) = deaths
        assert (info.id, info.attempt, reason) == ("poison", 3, Reason.LOST)
        assert info.reason is reason and s.orders(State.DEAD) == [info]
        until(lambda: len(others) == 99 and len(errors) == 3)
        assert [order.attempt for order, _ in errors] == [1, 2, 3]
        assert all(order == "poison" and isinstance(error, lapse.Timeout) for order, error in errors)
        assert sum("poison" in text for text in messages(caplog)) == 3
        for hung in hangs:
            hung.go.set()
        until(lambda: len(poisoned) == 6)
        assert [held for *_, held in poisoned] == [True] * 3 + [False] * 3
        until(lambda: s.stats()["running"] == 0 and s.stats()["stale"] == 3)
        assert s.stats()["lost"] == 3 and s.stats()["done"] == 99
        assert s.orders(State.DEAD) == [info]


def test_p63_an_operator_can_cancel_it_while_it_is_claimed():
    clock, hang = lapse.ManualClock(), Hang()
    with lapse.Scheduler(workers=2, clock=clock, on_error=lambda order, error: None) as s:
        s.handle("q", hang, run_limit=10)
        s.schedule("poison", 0, queue="q")
        clock.advance(0.001)
        assert hang.inside.wait(PATIENCE)
        assert s.cancel("poison") is Fate.RUNNING
        clock.advance(20)
        until(lambda: s.stats()["lost"] == 1)
        assert s.get("poison") is None and s.stats()["cancelled"] == 1
        hang.go.set()


def test_a_failure_after_its_time_is_reported_as_both():
    """One report that the order was lost, and one of what the callback raised later."""
    errors = []
    story = Story(on_error=lambda order, error: errors.append((order.attempt, type(error))))

    @story.s.handler("q", run_limit=10, backoff=1)
    def slow(order):
        if order.attempt == 1:
            story.clock.advance(11)
            story.now_ns += 11 * 10**9
            raise ValueError("too late")
        story.mark(order)

    story.s.schedule("a", 0, slow)
    story.at(0)
    story.at(12)
    assert sorted(errors, key=str) == [(1, ValueError), (1, lapse.Timeout)]
    assert [order.attempt for order in story.ran] == [2] and story.s.stats()["failed"] == 0


def test_p63_claims_that_are_never_settled():
    deaths = []
    story = Story(lease=30, on_dead=lambda info, reason: deaths.append((info, reason)))
    story.s.schedule("poison", 0, queue="q")
    story.s.schedule("good", 0, queue="q")
    kept = []
    for attempt in range(1, 6):
        claim = story.s.poll("q")
        assert (claim, claim.attempt) == ("poison", attempt)
        if attempt == 1:
            story.s.poll("q").done()
        kept.append(claim)  # its worker hangs, or died without a word
        story.at(attempt * 31)
    assert story.s.poll("q") is None
    ((info, reason),) = deaths
    assert (info.id, info.attempt, reason) == ("poison", 5, Reason.LOST)
    for claim in kept:
        assert not claim.holds()
        with pytest.raises(lapse.Stale):
            claim.done()
    assert story.s.stats()["dead_by"]["lost"] == 1


# -- Leases: P-59 -------------------------------------------------------------------------


def test_p59_the_lease_ends_while_the_work_goes_on():
    story = Story(lease=1)
    story.s.schedule("o", 0)
    a = story.s.poll()
    assert a.holds() and story.s.holds(a) and story.s.holds(a.fence)
    story.at(1.5)
    assert not a.holds()
    b = story.s.poll()
    story.s.renew(b, 60)
    assert (b, b.attempt) == ("o", a.attempt + 1) and b.fence > a.fence
    with pytest.raises(lapse.Stale):
        a.renew(1)
    with pytest.raises(lapse.Stale):
        a.done()
    assert story.s.get("o").state is State.RUNNING and b.holds()
    b.done()
    with pytest.raises(lapse.Stale):
        b.done()
    assert story.s.get("o") is None and story.s.stats()["done"] == 1


def test_p59_renewed_in_time_nobody_else_gets_it():
    story = Story(lease=1)
    story.s.schedule("o", 0)
    a = story.s.poll()
    for tenths in range(5, 35, 5):
        story.at(tenths / 10)
        a.renew()
        assert story.s.poll() is None
    assert a.holds()
    a.done()
    assert story.s.stats()["done"] == 1 and story.s.stats()["lost"] == 0


def test_p59_a_lease_moved_for_a_callback(story):
    @story.s.handler("q", run_limit=10)
    def slow(order):
        story.s.renew(order, 100)
        story.clock.advance(50)
        story.ran.append(order)
        assert story.s.holds(order)

    story.s.schedule("a", 0, slow)
    story.s.process()
    story.clock.advance(0.001)
    story.s.process()
    assert story.ran == ["a"] and story.s.stats()["lost"] == 0
    with pytest.raises(lapse.Stale):
        story.s.renew(story.ran[0])
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises((lapse.Error, TypeError)):
            story.s.renew(1, wrong)
    with pytest.raises(TypeError):
        story.s.holds("a")


@pytest.mark.parametrize("option", ["keep", "lease", "stuck_after"])
@pytest.mark.parametrize("value", [-1, float("nan"), 1e300, "1", True])
def test_durations_are_checked(option, value):
    with pytest.raises((lapse.Range, TypeError)):
        lapse.Scheduler(**{option: value})


# -- on_dead ---------------------------------------------------------------------------------


def test_on_dead_is_told_of_every_reason():
    told = []
    story = Story(
        max_pending=2,
        overflow="dead_letter_oldest",
        on_error=lambda order, error: None,
        on_dead=lambda info, reason: told.append((info, reason)),
        lease=1,
    )
    s = story.s

    def rejects(order):
        raise lapse.Reject("no such account")

    s.handle("fails", lambda order: 1 / 0, attempts=1)
    s.handle("expires", story.mark, expires=1)
    s.schedule("failed", 0, queue="fails", payload=b"p")
    s.schedule("rejected", 0, rejects)
    story.at(0)
    s.schedule("expired", 0, queue="expires")
    story.at(5)
    s.schedule("lost", 0)
    for i in range(5):
        kept = s.poll()
        story.at(7 + 2 * i)
    assert kept == "lost" and s.poll() is None
    s.schedule("x", 60, print)
    s.schedule("y", 60, print)
    s.schedule("z", 60, print)
    assert [(info.id, reason.name) for info, reason in told] == [
        ("failed", "FAILED"),
        ("rejected", "REJECTED"),
        ("expired", "EXPIRED"),
        ("lost", "LOST"),
        ("x", "MAXLEN"),
    ]
    for info, reason in told:
        assert info.state is State.DEAD and info.reason is reason and info.ended > 0
        assert info in s.orders(State.DEAD)
    assert told[0][0].payload == b"p" and told[0][0].queue == "fails"
    assert told[0][0].error == "ZeroDivisionError: division by zero"
    assert told[1][0].error == "no such account"


def test_without_on_dead_the_log_tells(caplog, story):
    def rejects(order):
        raise lapse.Reject("no such account")

    story.s.schedule("a", 0, rejects)
    story.at(0)
    assert messages(caplog) == ["order 'a' is a dead letter: rejected (no such account)"]
    assert caplog.records[-1].levelno == logging.WARNING


def test_p40_on_dead_that_fails_is_reported_once(caplog, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    def broken(info, reason):
        raise SystemExit("the hook is broken")

    def rejects(order):
        raise lapse.Reject

    story = Story(on_dead=broken)
    story.s.schedule("a", 0, rejects)
    story.s.schedule("b", 0, story.mark)
    assert story.at(0) == ["b"]
    assert messages(caplog) == ["on_dead failed for order 'a'"]
    assert isinstance(caplog.records[-1].exc_info[1], SystemExit)
    assert unraisable == [] and sys.exc_info() == (None, None, None)


def test_p28_hooks_may_use_the_scheduler():
    answers = []
    story = Story(max_pending=3, overflow="dead_letter_oldest")
    s = story.s

    def on_dead(info, reason):
        answers.append(s.cancel("pending"))
        assert s.get(info.id).state is State.DEAD
        with pytest.raises(lapse.InCallback):
            s.close()
        with pytest.raises(lapse.Exists):
            s.schedule("last", 1, print)
        s.purge(info.id)

    s.on_dead = on_dead
    s.schedule("oldest", 60, story.mark)
    s.schedule("pending", 60, story.mark)
    s.schedule("x", 60, story.mark)
    generation = s.schedule("last", 60, story.mark)  # and its own answer is not disturbed
    assert generation == s.get("last").generation
    assert answers == [Fate.CANCELLED]
    assert s.orders(State.DEAD) == []
    with pytest.raises(lapse.Range):
        s.schedule("y", float("nan"), story.mark)


def test_hooks_of_schedule_many_and_an_error_beside():
    told = []
    story = Story(
        max_pending=2,
        overflow="dead_letter_oldest",
        on_dead=lambda info, reason: told.append(info.id),
    )
    results = story.s.schedule_many([(f"o{i}", 60, story.mark) for i in range(5)] + [("", 1)])
    assert [type(r) for r in results] == [int] * 5 + [lapse.BadId]
    assert told == ["o0", "o1", "o2"]


def test_on_dead_can_be_set_later(story):
    with pytest.raises(TypeError):
        story.s.on_dead = 5
    with pytest.raises(TypeError):
        lapse.Scheduler(on_dead=5)
    assert story.s.on_dead is None
    story.s.on_dead = print
    assert story.s.on_dead is print
    story.s.on_dead = None
    assert story.s.on_dead is None


def test_hooks_without_the_gil_deadlock_nobody():
    """A waiting worker sees that an order is lost while its callback settles it."""
    told = []
    with lapse.Scheduler(
        workers=4,
        on_error=lambda order, error: told.append(order),
        on_dead=lambda info, reason: told.append(info.id),
    ) as s:

        def slow(order):
            time.sleep(0.002)  # sleeps: about as long as the limit is, so that both happen
            if int(order.id) % 3 == 0:
                raise ValueError

        s.handle("q", slow, attempts=2, backoff=0.001, run_limit=0.002, stuck_after=0.001)
        count = rounds(100, 2_000, 20_000)
        s.schedule_many([(str(i), 0, None, None, "q") for i in range(count)])
        until(lambda: s.stats()["pending"] + s.stats()["running"] == 0)
        stats = s.stats()
        assert stats["done"] + stats["dead_total"] == count
        until(lambda: len(told) >= stats["dead_total"])


def test_close_waits_for_a_hook():
    inside, go, done = threading.Event(), threading.Event(), []

    def on_dead(info, reason):
        inside.set()
        go.wait(PATIENCE)
        done.append(info.id)

    def rejects(order):
        raise lapse.Reject

    s = lapse.Scheduler(on_dead=on_dead)
    s.schedule("a", 0, rejects)
    assert inside.wait(PATIENCE)
    with pytest.raises(lapse.Timeout):
        s.close(0.01)
    threading.Timer(0.02, go.set).start()
    s.close()
    assert done == ["a"]


def test_a_taker_on_another_thread_hears_of_it():
    """Nobody watches without workers: a thread in take() delivers what it saw there."""
    told = []
    with lapse.Scheduler(workers=0, lease=0.01, on_dead=lambda i, r: told.append(i.id)) as s:
        s.schedule("o", 0, queue="q")
        claims = []

        def take_all(number):
            while len(claims) < 5:
                claims.append(s.take("q", timeout=PATIENCE))
            assert s.take("other", timeout=1.5) is None

        in_threads(1, take_all)
        assert told == ["o"]
        claims.clear()
        gc.collect()


def test_the_log_is_escaped_and_leveled(caplog):
    story = Story(lease=1)
    story.s.schedule("a\nb", 0)
    claim = story.s.poll()
    story.at(2)
    story.s.poll()
    (text,) = messages(caplog)
    assert "\n" not in text and "a" in text
    assert caplog.records[-1].levelno == logging.WARNING
    assert not claim.holds()
