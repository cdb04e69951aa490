"""Delays and instants: what is accepted, what it means, and that nothing is early."""

import math
import random
import threading
from datetime import UTC, date, datetime, timedelta, timezone

import lapse
import pytest
from support import Story, boot_ns, in_threads, rounds, until

HUGE_MS = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 2, 2**63 - 1]
YEARS_100 = 36525 * 86400


@pytest.mark.parametrize("engine", ["wheel", "heap"])
def test_p01_a_huge_delay_is_far_away_or_refused(engine):
    story = Story(f"memory:?engine={engine}")
    accepted = []
    for ms in HUGE_MS:
        for delay in (ms / 1000, ms // 1000, ms, float(ms)):
            order_id = f"h{len(accepted)}"
            try:
                story.s.schedule(order_id, delay, story.mark)
                accepted.append(order_id)
                assert delay <= YEARS_100
            except lapse.Range:
                assert delay > YEARS_100
    story.s.schedule("near", 0.05, story.mark)
    assert story.at(1) == ["near"]
    assert story.pending == len(accepted) >= 8
    assert all(story.s.cancel(order_id) is lapse.Fate.CANCELLED for order_id in accepted)
    assert story.pending == 0


@pytest.mark.parametrize("days", [24.9, 30, 49.8, 60, 36525])
def test_p09_a_month_stays_a_month(story, days):
    for order_id, delay in (("number", days * 86400), ("delta", timedelta(days=days))):
        story.s.schedule(order_id, delay, story.mark)
        assert story.s.get(order_id).remaining == pytest.approx(days * 86400, abs=1)
        assert story.s.get(order_id).due - story.s.get("number").due == pytest.approx(0, abs=1)
    assert story.at(5) == []
    assert story.at(days * 86400 - 1) == []
    assert sorted(story.at(days * 86400)) == ["delta", "number"]


@pytest.mark.parametrize(
    ("delay", "error"),
    [
        (math.nan, lapse.RangeError),
        (-math.nan, lapse.RangeError),
        (math.inf, lapse.RangeError),
        (-math.inf, lapse.RangeError),
        (1e300, lapse.RangeError),
        (YEARS_100 + 1, lapse.RangeError),
        (YEARS_100 + 1.0, lapse.RangeError),
        (10**40, lapse.RangeError),
        (timedelta.max, lapse.RangeError),
        (timedelta(seconds=YEARS_100, microseconds=1), lapse.RangeError),
        (True, TypeError),
        (False, TypeError),
        ("5", TypeError),
        (b"5", TypeError),
        (None, TypeError),
        (1j, TypeError),
        ([1], TypeError),
        (datetime.now(UTC), TypeError),
    ],
)
def test_p10_nan_and_friends(story, delay, error):
    story.s.schedule("old", 7, story.mark)
    before = story.s.stats()["pending"], story.s.get("old").remaining
    calls = [
        lambda: story.s.schedule("x", delay, story.mark),
        lambda: story.s.reschedule("old", delay),
        lambda: story.s.schedule("old", delay, story.mark, replace=True),
        lambda: lapse.schedule("x", delay, story.mark),
        lambda: lapse.reschedule("x", delay),
    ]
    if delay is not None:  # as a retry or a limit None has a meaning
        calls += [
            lambda: lapse.Retry(delay),
            lambda: story.s.take(timeout=delay),
            lambda: story.s.cancel_wait("old", delay),
            lambda: story.s.close(delay),
            lambda: lapse.Scheduler(keep=delay),
        ]
    for call in calls:
        with pytest.raises(error) as caught:
            call()
        if error is lapse.RangeError:
            assert isinstance(caught.value, ValueError)
    assert (story.s.stats()["pending"], story.s.get("old").remaining) == before
    assert isinstance(story.s.schedule_many([("x", delay)])[0], error)
    assert story.s.get("x") is None and lapse.get("x") is None


@pytest.mark.parametrize("delay", [5e-324, 1e-12, timedelta(microseconds=1)])
def test_p10_smaller_than_a_tick_is_rounded_up(story, delay):
    story.s.schedule("d", delay, story.mark)
    assert story.at(0) == []
    assert story.at(Story.TICK) == ["d"]


@pytest.mark.parametrize("delay", [0, -0.0, 0.0, timedelta(0)])
def test_p10_minus_zero_is_zero(story, delay):
    story.s.schedule("z", delay, story.mark)
    assert story.at(0) == ["z"]


@pytest.mark.parametrize(
    "delay", [-0.001, -0.046, -(2**31), -(2**62), -(10**40), -1e300, timedelta.min]
)
def test_p11_negative_runs_at_once(story, delay):
    story.s.schedule("n", delay, story.mark)
    story.s.schedule("later", 9, story.mark)
    assert story.s.reschedule("later", delay) is lapse.Fate.RESCHEDULED
    assert sorted(story.at(0)) == ["later", "n"]
    assert all(order.late == 0 for order in story.ran)


@pytest.mark.parametrize("engine", ["wheel", "heap"])
def test_p12_never_early(engine):
    per_thread = rounds(250, 25_000, 250_000)
    asked: dict[str, tuple[int, int]] = {}
    early, left = [], threading.Semaphore(0)

    def check(order):
        now = boot_ns()
        start, delay_ns = asked[order]
        if now - start < delay_ns or order.late < 0:
            early.append(order)
        left.release()

    with lapse.Scheduler(f"memory:?engine={engine}") as s:

        def one(order_id, ms):
            asked[order_id] = (boot_ns(), math.ceil(ms * 1e6))
            s.schedule(order_id, ms / 1000, check)

        def many(number):
            dice = random.Random(number)
            for i in range(per_thread):
                fraction = dice.choice((0.4, 1.5, 2.999)) if i % 25 == 0 else dice.randint(1, 50)
                one(f"{number}/{i}", fraction)

        in_threads(4, many)
        for _ in range(4 * per_thread):
            assert left.acquire(timeout=30)
    assert early == []


def test_p13_a_literal_counts_seconds(story):
    for order_id, delay in (("float", 1.5), ("delta", timedelta(milliseconds=1500))):
        story.s.schedule(order_id, delay, story.mark)
    story.s.schedule("int", 1500, story.mark)
    assert story.s.get("float").remaining == 1.5 and story.s.timeout() == 1.5
    assert story.at(1.499) == []
    assert story.at(1.5) == ["float", "delta"]
    assert story.at(1499.999) == []
    assert story.at(1500) == ["int"]


def test_p13_every_time_names_its_unit():
    timed = {
        lapse.Scheduler.schedule: "delay",
        lapse.Scheduler.reschedule: "delay",
        lapse.Scheduler.schedule_at: "at",
        lapse.Scheduler.cancel_wait: "timeout",
        lapse.Scheduler.take: "timeout",
        lapse.Scheduler.close: "timeout",
        lapse.Scheduler.timeout: "",
        lapse.Scheduler.now: "",
        lapse.Scheduler.stats: "",
        lapse.ManualClock.advance: "by",
        lapse.ManualClock.set_wall: "utc",
        lapse.ManualClock.now: "",
        lapse.ManualClock: "start",
        lapse.Scheduler: "keep",
        lapse.Retry: "delay",
        lapse.Order: "due",
        lapse.Info: "",
        lapse.schedule: "delay",
        lapse.reschedule: "delay",
        lapse.schedule_at: "at",
    }
    for what, parameter in timed.items():
        assert parameter in what.__doc__ and "seconds" in what.__doc__.lower(), what


def test_integers_and_timedeltas_are_exact():
    story = Story("memory:?engine=heap")
    seconds = YEARS_100 - 1  # as a float of nanoseconds it would lose its last digits
    story.s.schedule("int", seconds, story.mark)
    story.s.schedule("delta", timedelta(seconds=seconds, microseconds=1), story.mark)
    assert lapse._lapse._seconds_to_ns(seconds) == seconds * 10**9
    assert lapse._lapse._seconds_to_ns(timedelta(seconds=seconds, microseconds=1)) == (
        seconds * 10**9 + 1000
    )
    assert lapse._lapse._seconds_to_ns(timedelta(microseconds=-1)) == 0
    assert story.at(seconds - 1) == []
    assert story.at(seconds) == ["int"]


START = datetime(2026, 1, 1, tzinfo=UTC)  # where a manual wall clock begins


@pytest.mark.parametrize(
    "when",
    [
        START + timedelta(seconds=90),
        (START + timedelta(seconds=90)).astimezone(timezone(timedelta(hours=5, minutes=45))),
        START.timestamp() + 90,
        int(START.timestamp()) + 90,
    ],
)
def test_schedule_at_an_instant(story, when):
    assert story.s.schedule_at("o", when, story.mark) > 0
    assert story.at(89.999) == []
    assert story.at(90) == ["o"]
    assert story.ran[0].due == START.timestamp() + 90


def test_schedule_at_the_past_is_due_at_once(story):
    for i, when in enumerate([0, -5, 0.0, -0.25, START - timedelta(days=1), 1e9]):
        story.s.schedule_at(f"o{i}", when, callback=story.mark)
    assert len(story.at(0)) == 6


@pytest.mark.parametrize(
    ("when", "error"),
    [
        (datetime(2030, 1, 1), ValueError),
        (date(2030, 1, 1), TypeError),
        ("2030-01-01", TypeError),
        (True, TypeError),
        (None, TypeError),
        (math.nan, lapse.Range),
        (math.inf, lapse.Range),
        (1e300, lapse.Range),
        (10**30, lapse.Range),
        (datetime(2300, 1, 1, tzinfo=UTC), lapse.Range),
    ],
)
def test_schedule_at_refuses(story, when, error):
    with pytest.raises(error):
        story.s.schedule_at("o", when, story.mark)
    assert story.pending == 0


def test_wall_clock_steps_do_not_move_an_order(story):
    story.s.schedule_at("at", START + timedelta(seconds=60), story.mark)
    story.s.schedule("in", 60, story.mark)
    story.clock.set_wall(START + timedelta(hours=1))
    assert story.at(59.999) == []
    story.clock.set_wall(START.timestamp() - 3600)
    assert sorted(story.at(60)) == ["at", "in"]
    assert all(order.late >= 0 for order in story.ran)


def test_manual_clock():
    clock = lapse.ManualClock(start=5)
    assert clock.now() == 5
    clock.advance(timedelta(milliseconds=1500))
    clock.advance(0)
    assert clock.now() == 6.5
    for step in (-1, -1e-9, timedelta(microseconds=-1), math.nan, math.inf):
        with pytest.raises(lapse.Range):
            clock.advance(step)
    for step in (True, "1", None):
        with pytest.raises(TypeError):
            clock.advance(step)
    assert clock.now() == 6.5
    with pytest.raises(TypeError):
        lapse.Scheduler(clock="real")


def test_manual_clock_wakes_workers():
    clock = lapse.ManualClock()
    ran = []
    with lapse.Scheduler(clock=clock) as s:
        s.schedule("o", 3600, ran.append)
        clock.advance(3599)
        s.schedule("now", 0, ran.append)
        until(lambda: ran == ["now"])
        clock.advance(1)
        until(lambda: ran == ["now", "o"])
    del s
    assert clock.now() == 3600
