"""Handlers: who runs a queue's orders, how often, how soon, how late and how fast."""

import collections
import functools
import pathlib
import threading
import time
from datetime import timedelta

import lapse
import pytest
from lapse import Fate, Reason, State
from support import PATIENCE, Story, in_threads, rounds, until


def dead(s: lapse.Scheduler) -> dict[str, lapse.Info]:
    return {info.id: info for info in s.orders(State.DEAD)}


def fail(order):
    raise ValueError("on purpose")


# -- Who ------------------------------------------------------------------------------


def test_an_order_names_its_handler(story):
    story.s.schedule("before", 1, queue="close", payload=b"p")
    story.s.handle("close", story.mark)
    generation = story.s.schedule("after", 2, queue="close")
    own = []
    story.s.schedule("own", 1, own.append, queue="close")
    story.s.schedule("another's", 1, queue="another")
    assert story.at(1) == ["before"] and story.at(2) == ["after"]
    assert own == ["own"] and story.s.get("another's").state is State.PENDING
    first, second = story.ran
    assert (first.payload, first.queue, first.attempt) == (b"p", "close", 1)
    assert second.generation == generation


def test_a_registered_function_stands_for_its_queue(story):
    @story.s.handler("close", attempts=2, backoff=10, jitter_percent=-1)
    def close(order):
        story.mark(order)
        if order.attempt == 1:
            raise lapse.Retry

    class Shop:
        def ship(self, order):
            story.mark(order)

    shop = Shop()
    story.s.handle("ship", shop.ship)
    story.s.schedule("a", 1, close)
    story.s.schedule("b", 1, shop.ship)  # another object, but the same method
    story.s.schedule("c", 1, close, queue="close")
    story.s.schedule("d", 1, close, queue="elsewhere")  # then it is the order's own
    (e, f) = story.s.schedule_many([("e", 1, close), ("f", 1, None, None, "ship")])
    assert isinstance(e, int) and isinstance(f, int)
    queues = {info.id: info.queue for info in story.s.orders()}
    assert queues == {"a": "close", "b": "ship", "c": "close", "d": "elsewhere",
                      "e": "close", "f": "ship"}
    assert story.at(1) == ["a", "b", "c", "d", "e", "f"]
    assert sorted(story.at(11)) == ["a", "c", "d", "e"]  # an own one may always ask again
    story.s.handle("close", None)
    story.s.schedule("g", 1, close)
    assert story.s.get("g").queue == ""


def test_a_function_of_several_queues_must_be_named(story):
    story.s.handle("one", story.mark)
    story.s.handle("two", story.mark)
    with pytest.raises(lapse.Invalid, match="several queues"):
        story.s.schedule("a", 1, story.mark)
    assert isinstance(story.s.schedule_many([("a", 1, story.mark)])[0], lapse.Invalid)
    story.s.schedule("a", 1, story.mark, queue="two")
    story.s.handle("one", None)
    story.s.schedule("b", 1, story.mark)
    assert {info.queue for info in story.s.orders()} == {"two"}
    assert story.at(1) == ["a", "b"]


def test_what_cannot_be_hashed_is_found_by_name(story):
    class Odd:
        __hash__ = None

        def __call__(self, order):
            story.mark(order)

    odd = Odd()
    story.s.handle("odd", odd)
    story.s.schedule("a", 1, queue="odd")
    story.s.schedule("b", 1, odd)
    assert (story.s.get("a").queue, story.s.get("b").queue) == ("odd", "")
    assert story.at(1) == ["a", "b"]


def test_a_handler_is_replaced_and_removed(story):
    first, second = [], []
    for name in "abc":
        story.s.schedule(name, ord(name) - 96, queue="q")
    story.s.handle("q", first.append)
    story.at(1)
    story.s.handle("q", second.append)
    story.at(2)
    story.s.handle("q", None)
    story.s.handle("q", None)
    story.at(3)
    assert (first, second) == (["a"], ["b"])
    assert not story.s.queue_stats("q")["handled"]
    with story.s.poll("q") as order:  # its orders stay for a taker
        assert order == "c"
    with pytest.raises(lapse.Mixed):
        story.s.handle("q", first.append)


def test_a_handler_replaces_itself_while_it_runs(story):
    def once(order):
        story.mark(order)
        story.s.handle("q", twice)
        raise lapse.Retry(1)

    def twice(order):
        story.mark(order)
        story.s.handle("q", None)

    story.s.handle("q", once)
    for name in "abc":
        story.s.schedule(name, 0, queue="q")
    assert story.at(0) == ["a", "b"]
    story.s.handle("q", story.mark)
    assert story.at(1) == ["c", "a"] and story.ran[-1].attempt == 2


def test_handled_or_taken_from(story):
    story.s.handle("q", story.mark)
    for ask in (lambda: story.s.poll("q"), lambda: story.s.take("q", 0)):
        with pytest.raises(lapse.Mixed):
            ask()
    story.s.schedule("a", 0, queue="q")
    assert story.s.poll() is None


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ({"attempts": -1}, lapse.Range),
        ({"attempts": 10**30}, lapse.Range),
        ({"attempts": True}, TypeError),
        ({"attempts": 1.5}, TypeError),
        ({"backoff": -1}, lapse.Range),
        ({"backoff": float("nan")}, lapse.Range),
        ({"backoff": "1"}, TypeError),
        ({"backoff_max": 1e300}, lapse.Range),
        ({"backoff_percent": 99}, lapse.Range),
        ({"jitter_percent": 101}, lapse.Range),
        ({"run_limit": timedelta(seconds=-1)}, lapse.Range),
        ({"expires": -0.5}, lapse.Range),
        ({"rate": -1}, lapse.Range),
        ({"rate": 0.5}, TypeError),
        ({"stuck_after": float("inf")}, lapse.Range),
        ({"backof": 1}, TypeError),
    ],
)
def test_policies_have_ranges(story, policy, error):
    story.s.handle("q", story.mark, attempts=2)
    with pytest.raises(error):
        story.s.handle("q", fail, **policy)
    with pytest.raises(error):
        story.s.handler("q", **policy)(fail)
    story.s.schedule("a", 0, queue="q")
    assert story.at(0) == ["a"]  # nothing was changed


def test_wrong_handlers(story):
    async def coroutine(order):
        pass

    for wrong in (5, "close", coroutine, functools.partial(coroutine)):
        with pytest.raises(TypeError):
            story.s.handle("q", wrong)
    for queue in (None, b"q", 5):
        with pytest.raises(TypeError):
            story.s.handle(queue, story.mark)
    for queue in ("a\0b", "x" * 256):
        with pytest.raises(lapse.Invalid):
            story.s.handle(queue, story.mark)
    story.s.stop()
    with pytest.raises(lapse.Closed):
        story.s.handle("q", story.mark)
    assert story.s.queues() == [""]


def test_workers_run_handlers(story):
    ran, done = [], threading.Event()

    def close(order):
        ran.append(order)
        if len(ran) == 3:
            done.set()

    with lapse.Scheduler() as s:
        s.schedule("waits", 0, queue="q")
        assert threading.active_count() == 1  # there is nobody who could run it
        s.handle("q", close)
        s.schedule("a", 0.01, queue="q")
        s.schedule_many([("b", 0.02, close)])
        assert done.wait(PATIENCE)
    assert ran == ["waits", "a", "b"]


def test_registering_starts_no_thread_but_scheduling_does():
    ran = threading.Event()
    with lapse.Scheduler() as s:
        s.handle("q", lambda order: ran.set())
        assert threading.active_count() == 1
        s.schedule("a", 0, queue="q")
        assert ran.wait(PATIENCE)


# -- How often and how soon ---------------------------------------------------------------


def test_p76_retries_leave_air(story):
    errors = []
    story.s.on_error = lambda order, error: errors.append(order)
    policy = {"attempts": 5, "backoff": 1, "backoff_percent": 200, "jitter_percent": 20}
    attempts: dict[str, list[float]] = {}

    @story.s.handler("pay", **policy)
    def pay(order):
        attempts.setdefault(order, []).append(story.s.now())
        raise ConnectionError(f"attempt {order.attempt}")

    @story.s.handler("refund", **policy)
    def refund(order):
        attempts.setdefault(order, []).append(story.s.now())
        raise lapse.Reject("no such account")

    for i in range(1000):
        story.s.schedule(f"f{i}", 0, pay)
    story.s.schedule("permanent", 0, refund)
    story.s.schedule("other", 2, story.mark)
    run_until(story, 30)
    assert story.ran == ["other"] and story.ran[0].late == 0
    for i in range(1000):
        at = attempts[f"f{i}"]
        assert len(at) == 5
        for k in range(4):
            assert 0.8 * 2**k <= at[k + 1] - at[k] <= 1.2 * 2**k + 0.2
    assert len({round(attempts[f"f{i}"][1], 3) for i in range(1000)}) > 100  # not on one tick
    info = dead(story.s)["f0"]
    assert (info.reason, info.attempt) == (Reason.FAILED, 5)
    assert info.error == "ConnectionError: attempt 5"
    assert len(attempts["permanent"]) == 1
    assert dead(story.s)["permanent"].reason is Reason.REJECTED
    assert dead(story.s)["permanent"].error == "no such account"
    assert len(errors) == 5000 and story.pending == 0
    assert story.s.stats()["dead_by"]["failed"] == 1000


def run_until(story: Story, seconds: float) -> None:
    """Go to `seconds` from one due time to the next."""
    while (left := story.s.timeout()) is not None:
        at = story.now_ns / 1e9 + left
        if at > seconds:
            break
        story.at(at)
    story.at(seconds)


def test_the_backoff_is_what_the_policy_says(story):
    at = []

    @story.s.handler("q", attempts=6, backoff=2, backoff_percent=300, backoff_max=20,
                     jitter_percent=-1)
    def flaky(order):
        at.append(round(story.s.now(), 3))
        raise lapse.Retry

    story.s.schedule("a", 0, flaky)
    run_until(story, 100)
    assert at == [0, 2, 8, 26, 46, 66]


def test_a_retry_with_a_delay_counts_as_an_attempt(story):
    @story.s.handler("q", attempts=3)
    def flaky(order):
        story.mark(order)
        raise lapse.Retry(5, "gateway down")

    story.s.schedule("a", 0, flaky)
    assert [story.at(t) for t in (0, 4.9, 5, 10, 15)] == [["a"], [], ["a"], ["a"], []]
    info = dead(story.s)["a"]
    assert (info.reason, info.attempt, info.error) == (Reason.FAILED, 3, "gateway down")


def test_success_after_failures_is_done(story):
    story.s.on_error = lambda order, error: None

    @story.s.handler("q", backoff=1, jitter_percent=-1)
    def flaky(order):
        story.mark(order)
        if order.attempt < 3:
            raise ValueError

    generation = story.s.schedule("a", 0, flaky)
    run_until(story, 10)
    assert [order.attempt for order in story.ran] == [1, 2, 3]
    assert {order.generation for order in story.ran} == {generation}
    assert dead(story.s) == {} and story.s.queue_stats("q")["retried"] == 2


# -- How late ------------------------------------------------------------------------------


def test_p77_overdue_is_not_dropped(story):
    late = {"two seconds": 2, "an hour": 3600, "thirty days": 30 * 86400}
    now = 40 * 86400
    for name, seconds in late.items():
        story.s.schedule(name, now - seconds, queue="close")
    story.s.schedule("expired", now - 3600, queue="brief")
    story.s.schedule("in time", now - 30, queue="brief")
    story.clock.advance(now)
    story.now_ns = now * 10**9
    deaths = []
    story.s.on_dead = lambda info, reason: deaths.append((info.id, reason))
    story.s.handle("close", story.mark)
    story.s.handle("brief", story.mark, expires=60)
    for i in range(100):
        story.s.schedule(f"n{i}", 60, queue="close")
    assert sorted(story.at(now)) == sorted([*late, "in time"])
    for order in story.ran:
        assert order.late == pytest.approx(late.get(order.id, 30))
    assert deaths == [("expired", Reason.EXPIRED)]
    info = dead(story.s)["expired"]
    assert (info.reason, info.attempt) == (Reason.EXPIRED, 0)
    assert len(story.at(now + 60)) == 100 and story.pending == 0


# -- How fast ------------------------------------------------------------------------------


def test_p75_catching_up_after_an_outage(story):
    backlog, rate = rounds(4_000, 20_000, 200_000), 2000
    per_second: dict[int, int] = {}
    started: list[lapse.Order] = []

    def close(order):
        at = story.s.now()
        started.append(order)
        per_second[int((at - begin) * 20)] = per_second.get(int((at - begin) * 20), 0) + 1

    for i in range(backlog):
        story.s.schedule(f"old{i}", 10 * i / backlog, queue="close")
    story.clock.advance(60)
    begin = story.s.now()
    story.s.handle("close", close, rate=rate)
    new = 0
    steps = 0
    while len(started) < backlog + new:
        story.clock.advance(0.001)
        steps += 1
        if steps % 10 == 0 and steps < 1000 * backlog / rate:
            story.s.schedule(f"new{new}", 0, queue="close")
            new += 1
        story.s.process()
        assert steps < 4000 * backlog / rate
    windows = [sum(per_second.get(w + k, 0) for k in range(20)) for w in range(max(per_second))]
    assert max(windows) <= rate * 1.05
    assert steps / 1000 <= 1.1 * (backlog + new) / rate  # and no slower than it must be
    oldest_first = 0  # of those that were overdue; one in four starts goes to the newest
    left = collections.deque(f"old{i}" for i in range(backlog))
    for order in started:
        if order.startswith("old"):
            oldest_first += order == left[0]
            assert order == (left.popleft() if order == left[0] else left.pop())
    assert oldest_first >= 0.74 * backlog
    fresh = [order.late for order in started if order.startswith("new")]
    assert max(fresh) < 1  # not held up behind the backlog
    assert len(set(started)) == backlog + new


def test_p75_stop_while_catching_up():
    ran, count = [], rounds(2_000, 20_000, 200_000)
    running, most = [0], [0]
    lock = threading.Lock()

    def close(order):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        ran.append(order)
        with lock:
            running[0] -= 1

    with lapse.Scheduler(workers=8) as s:
        s.schedule_many([(f"o{i}", 0, None, None, "close") for i in range(count)])
        s.handle("close", close, rate=2000)
        until(lambda: len(ran) > 50)
        start = time.monotonic()
        s.stop()
        assert time.monotonic() - start < 1
        until(lambda: s.stats()["running"] == 0)
        left = {info.id for info in s.orders(State.PENDING)}
        assert left | set(ran) == {f"o{i}" for i in range(count)} and not left & set(ran)
        assert most[0] <= 8


# -- Pausing -----------------------------------------------------------------------------------


def test_pause_and_resume(story):
    story.s.handle("q", story.mark)
    story.s.schedule("own", 1, lambda order: story.mark(order), queue="q")
    story.s.schedule("handled", 1, queue="q")
    story.s.schedule("paid", 1, queue="q")
    story.s.schedule("another", 1, lambda order: story.mark(order))
    story.s.pause("q")
    assert story.s.queue_stats("q")["paused"]
    assert story.at(2) == ["another"]
    assert story.s.cancel("paid") is Fate.CANCELLED
    story.s.resume("q")
    assert story.at(3) == ["own", "handled"]
    story.s.pause("")
    story.s.schedule("late", 0, lambda order: story.mark(order))
    assert story.at(4) == []
    story.s.resume("")
    assert story.at(4) == ["late"]
    with pytest.raises(TypeError):
        story.s.pause(5)


# -- Catching up on the shop's side ---------------------------------------------------------


def test_p71_closed_once_although_delivered_three_times(story):
    stock, guard = [10], threading.Lock()
    done: set[tuple[str, int]] = set()
    deliveries: list[lapse.Order] = []

    def return_stock(key):
        with guard:
            if key in done:
                return
            done.add(key)
            stock[0] += 1

    @story.s.handler("close", attempts=3, backoff=1, jitter_percent=-1)
    def close(order):
        deliveries.append(order)
        return_stock((order.id, order.generation))
        if order.attempt < 3:
            raise lapse.Retry  # as if the answer had been lost

    generation = story.s.schedule("OID1", 30, close)
    story.at(30)
    in_threads(2, lambda n: return_stock(("OID1", generation)))  # the sweeper, twice
    run_until(story, 60)
    assert stock == [11]
    assert [order.attempt for order in deliveries] == [1, 2, 3]
    assert len({(order.id, order.generation) for order in deliveries}) == 1
    stats = story.s.stats()
    assert (stats["failed"], stats["done"], stats["dead"]) == (0, 1, 0)


def test_p72_payment_after_closing():
    story = Story(keep=120)
    story.s.handle("close", story.mark)
    for name in ("late", "started to pay", "forgotten"):
        story.s.schedule(name, 30 * 60, queue="close")
    story.at(29 * 60)
    assert story.s.reschedule("started to pay", 5 * 60) is Fate.RESCHEDULED
    assert story.at(30 * 60) == ["late", "forgotten"]
    assert story.at(32 * 60 - 1) == []
    assert story.s.cancel("late") is Fate.DONE and not story.s.cancel("late")
    closed = story.s.get("late")
    assert closed.state is State.DONE and closed.ended - closed.due < 1
    assert story.s.reschedule("late", 300) is Fate.DONE
    assert story.at(34 * 60) == ["started to pay"]
    assert story.s.cancel("forgotten") is Fate.UNKNOWN  # beyond `keep`
    assert story.s.cancel("never heard of") is Fate.UNKNOWN


def test_p53_the_same_id_in_every_state(story):
    """absent, pending, running, done, dead, cancelled; refused and replaced."""
    again = []

    def ends(order):
        raise lapse.Reject("over")

    def schedules_again(order):
        again.append(story.s.schedule("X", 5, story.mark, replace=replace))

    for replace in (False, True):
        made = {}

        def put(state, replace=replace, made=made):
            made[state] = story.s.schedule("X", 5, story.mark, replace=replace)
            assert story.s.get("X").remaining == 5

        put("absent")
        if replace:
            put("pending")
        else:
            with pytest.raises(lapse.Exists):
                story.s.schedule("X", 1, story.mark)
        assert story.s.cancel("X")
        put("cancelled")
        story.s.cancel("X")
        story.s.schedule("X", 0, schedules_again)
        story.s.process()
        assert story.s.get("X").generation == again[-1]  # the next generation
        story.s.cancel("X")
        story.s.schedule("X", 0, lambda order: None)
        story.s.process()
        put("done")
        story.s.cancel("X")
        story.s.schedule("X", 0, ends)
        story.s.process()
        put("dead")
        story.s.cancel("X")
        assert list(made.values()) == sorted(set(made.values()))
    assert story.ran == [] and story.s.purge("X") == 2


def test_p22_the_count_is_exact_with_a_handler():
    go, started, clock = threading.Event(), threading.Event(), lapse.ManualClock()
    with lapse.Scheduler(max_pending=20, clock=clock) as s:
        s.handle("q", lambda order: (started.set(), go.wait(PATIENCE)))
        for i in range(11):
            s.schedule(f"n{i}", 0.05, queue="q")
        clock.advance(0.05)
        assert started.wait(PATIENCE)
        assert all(s.cancel(f"n{i}") is Fate.CANCELLED for i in range(1, 11))
        figures = s.queue_stats("q")
        assert (figures["pending"], figures["running"], figures["cancelled"]) == (0, 1, 10)
        go.set()
        until(lambda: s.stats()["running"] == 0)
        results = s.schedule_many([(f"m{i}", 9, None, None, "q") for i in range(21)])
        assert [type(r) for r in results] == [int] * 20 + [lapse.Full]
        s.handle("q", None)
        assert s.queue_stats("q")["pending"] == 20


def test_p31_stop_leaves_what_did_not_run():
    ran, count = [], 1000
    with lapse.Scheduler(workers=2) as s:
        s.handle("q", lambda order: ran.append(order))
        s.schedule_many([(f"o{i}", i / 20_000, None, None, "q") for i in range(count)])
        until(lambda: len(ran) > 10)
        s.stop()
        until(lambda: s.stats()["running"] == 0)
        left = {info.id for info in s.orders(State.PENDING)}
        assert left | set(ran) == {f"o{i}" for i in range(count)} and not left & set(ran)
        for call in (lambda: s.schedule("x", 1, queue="q"), lambda: s.handle("q", print)):
            with pytest.raises(lapse.Closed):
                call()


# -- Figures ------------------------------------------------------------------------------------


def test_figures_of_a_queue(story):
    body = (pathlib.Path(__file__).parents[2] / "core/include/lapse.h").read_text()
    body = body.split("typedef struct lapse_queue_stats {")[1].split("}")[0]
    names = set()
    for line in body.splitlines():
        words = line.split("/*")[0].split(";")[0].replace(",", " ").split()
        if words and words[0] in ("uint64_t", "lapse_ns", "bool"):
            names |= {word.split("[")[0] for word in words[1:]}
    story.s.handle("q", story.mark)
    story.s.schedule("a", 1, queue="q")
    story.s.schedule("b", 9, queue="q")
    story.s.schedule("c", 1, queue="r")
    story.at(1.5)
    found = story.s.queue_stats("q")
    assert set(found) == names
    assert (found["handled"], found["paused"]) == (True, False)
    assert (found["pending"], found["started"], found["done"]) == (1, 1, 1)
    assert 0.5 <= found["late_max"] <= 0.5 * (1 + 1 / 16)
    assert found["dead_by"] == dict.fromkeys(["failed", "rejected", "expired", "maxlen", "lost"], 0)
    assert story.s.queue_stats("r")["oldest_due"] == pytest.approx(0.5)
    assert sorted(story.s.queues()) == ["", "q", "r"]
    with pytest.raises(lapse.Unknown):
        story.s.queue_stats("nobody's")
    with pytest.raises(LookupError):
        story.s.queue_stats("nobody's")


def test_metrics(story):
    story.s.handle("q\n\"ü", story.mark)
    story.s.schedule("a", 0, queue="q\n\"ü")
    story.s.schedule("b", 9)
    story.at(0)
    text = story.s.metrics()
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    assert values['lapse_orders{state="pending"}'] == 1
    assert values["lapse_done_total"] == 1
    assert values['lapse_dead_total{reason="lost"}'] == 0
    assert values['lapse_queue_started_total{queue="q\\\\x0a\\"ü"}'] == 1
    assert "# TYPE lapse_done_total counter" in text
    assert text.endswith("\n")


def test_the_books_balance(story):
    story.s.on_error = lambda order, error: None
    verdicts = [None, lapse.Retry(0), lapse.Reject("no"), ValueError("v")]

    def by_number(order):
        if verdict := verdicts[int(order.id) % 4]:
            raise verdict

    story.s.handle("q", by_number, attempts=2, backoff=1)
    for i in range(200):
        story.s.schedule(str(i), i % 7, *([by_number] if i % 2 else []), queue="q")
        if i % 5 == 0:
            story.s.cancel(str(i))
    for t in range(20):
        story.at(t)
        stats = story.s.stats()
        assert stats["scheduled"] == sum(
            stats[k] for k in ("done", "cancelled", "replaced", "dead_total", "pending", "running")
        )
    assert story.s.stats()["pending"] == 0 or story.s.stats()["retried"] > 0


def test_the_modules_functions():
    @lapse.handler("close", attempts=1)
    def close(order):
        raise lapse.Reject("no")

    deaths = []
    lapse.default_scheduler().on_dead = lambda info, reason: deaths.append(info.id)
    lapse.pause("close")
    lapse.schedule("a", 0, close)
    assert lapse.queue_stats("close")["paused"] and lapse.queues() == ["", "close"]
    lapse.resume("close")
    until(lambda: deaths == ["a"])
    lapse.handle("close", deaths.append)
    assert lapse.requeue("a") > 0
    until(lambda: deaths == ["a", "a"])
    assert lapse.purge() == 0 and lapse.holds(1) is False
    assert "lapse_requeued_total 1" in lapse.metrics()
