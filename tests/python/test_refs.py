"""References: held while an order is pending, gone when it has ended, cycles collected."""

import functools
import gc
import os
import sys
import threading
import tracemalloc
import weakref
from datetime import timedelta

import lapse
import pytest
from support import SANITIZED, Story, rounds, until


class Id(str):
    pass


class Payload(bytearray):
    pass


class Shop:
    """Its bound method is the callback; the weak reference watches the object."""

    def __init__(self, error=None):
        self.error = error
        self.ran = 0

    def close(self, order):
        self.ran += 1
        if self.error:
            raise self.error("on purpose")


def fired(story, order_id):
    story.at(1)


def cancelled(story, order_id):
    assert story.s.cancel(order_id)


def rescheduled(story, order_id):
    assert story.s.reschedule(order_id, 2)
    story.at(2)


def replaced(story, order_id):
    story.s.schedule(order_id, 1, story.mark, replace=True)


def stopped_and_closed(story, order_id):
    story.s.stop()
    story.s.close()


def dropped(story, order_id):
    story.s = None


PATHS = [fired, cancelled, rescheduled, replaced, stopped_and_closed, dropped]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("path", PATHS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("error", [None, ValueError, lapse.Reject])
def test_p39_released_on_every_path(path, error):
    story = Story(on_error=lambda order, error: None, max_dead=1)
    shop, order_id, payload = Shop(error), Id("o"), Payload(b"p")
    refs = [weakref.ref(shop)]
    copied = [weakref.ref(order_id), weakref.ref(payload)]
    story.s.schedule(order_id, 1, shop.close, payload=payload)
    del shop, order_id, payload
    gc.collect()
    assert all(ref() for ref in refs)  # nobody else holds it
    assert not any(ref() for ref in copied)  # ids and payloads are copied
    path(story, "o")
    if story.s and not story.s.closed and story.s.orders(lapse.State.DEAD):
        # A dead letter keeps its callback, to be put back; until it makes room for another.
        story.s.schedule("next", 0, Shop(lapse.Reject).close)
        story.at(3)
    gc.collect()
    assert not any(ref() for ref in refs)


@pytest.mark.parametrize(
    "refuse",
    [
        lambda s, f: s.schedule("o", float("nan"), f),
        lambda s, f: s.schedule("taken", 1, f),
        lambda s, f: s.schedule("", 1, f),
        lambda s, f: s.schedule("o", 1, f, payload="text"),
        lambda s, f: s.schedule("o", 1, f, queue="a\0b"),
        lambda s, f: s.schedule_at("o", None, f),
        lambda s, f: s.schedule_many(5) if f else None,
        lambda s, f: (s.schedule("full", 1), s.schedule("o", 1, f)),
        lambda s, f: (s.stop(), s.schedule("o", 1, f)),
        lambda s, f: (s.close(), s.schedule("o", 1, f)),
    ],
)
def test_p39_nothing_is_kept_of_a_refused_order(refuse):
    with lapse.Scheduler(workers=0, max_pending=2) as s:
        s.schedule("taken", 1)
        shop = Shop()
        ref = weakref.ref(shop)
        with pytest.raises((lapse.Error, TypeError)):
            refuse(s, shop.close)
        results = [] if s.closed else s.schedule_many([("o", None, shop.close)] * 3)
        assert all(isinstance(result, Exception) for result in results)
        del shop, results
        gc.collect()
        assert ref() is None


def test_p39_cancelled_while_running():
    go, started = threading.Event(), threading.Event()

    class Slow:
        def close(self, order):
            started.set()
            go.wait(30)

    with lapse.Scheduler() as s:
        slow = Slow()
        ref = weakref.ref(slow)
        s.schedule("o", 0, slow.close)
        del slow
        assert started.wait(30)
        assert s.cancel("o") is lapse.Fate.RUNNING
        gc.collect()
        assert ref() is not None
        go.set()
        until(lambda: gc.collect() >= 0 and ref() is None)


def handler_replaced(s):
    s.handle("q", print)


def handler_removed(s):
    s.handle("q", None)


def scheduler_closed(s):
    s.close()


@pytest.mark.parametrize(
    "path", [handler_replaced, handler_removed, scheduler_closed], ids=lambda f: f.__name__
)
def test_p39_a_handler_is_let_go(path):
    with lapse.Scheduler(workers=0) as s:
        shop = Shop()
        ref = weakref.ref(shop)
        s.handle("q", shop.close)
        s.schedule("o", 3600, queue="q")
        s.schedule("p", 3600, shop.close)
        del shop
        gc.collect()
        assert ref() is not None
        path(s)
        gc.collect()
        assert ref() is None


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_p39_a_handler_goes_with_its_scheduler(story):
    shop = Shop()
    ref = weakref.ref(shop)
    story.s.handle("q", shop.close)
    story.s.on_dead = lambda info, reason, keep=shop: None
    del shop
    gc.collect()
    assert ref() is not None
    story.s = None
    gc.collect()
    assert ref() is None


def test_p39_a_handler_replaced_while_it_runs(story):
    class Once:
        def close(self, order):
            story.s.handle("q", None)
            gc.collect()
            story.mark(order)

    once = Once()
    ref = weakref.ref(once)
    story.s.handle("q", once.close)
    story.s.schedule("a", 0, queue="q")
    del once
    assert story.at(0) == ["a"]
    gc.collect()
    assert ref() is None


@pytest.mark.parametrize(
    "refuse",
    [
        lambda s, f: s.handle("q", f, attempts=-1),
        lambda s, f: s.handle("a\0b", f),
        lambda s, f: s.handle("taken", f),
        lambda s, f: (s.stop(), s.handle("q", f)),
        lambda s, f: (s.close(), s.handle("q", f)),
    ],
)
def test_p39_a_refused_handler_is_not_kept(refuse):
    with lapse.Scheduler(workers=0) as s:
        assert s.poll("taken") is None
        shop = Shop()
        ref = weakref.ref(shop)
        with pytest.raises(lapse.Error):
            refuse(s, shop.close)
        del shop
        gc.collect()
        assert ref() is None


def dead_letter_purged(story):
    assert story.s.purge("o") == 1


def dead_letter_put_back(story):
    story.s.requeue("o")
    story.at(2)


def dead_letter_put_back_and_cancelled(story):
    story.s.requeue("o", 60)
    assert story.s.cancel("o")


def dead_letter_dropped(story):
    story.s.schedule("next", 0, Shop(lapse.Reject).close)
    story.at(2)


def dead_letter_closed(story):
    story.s.close()


@pytest.mark.parametrize(
    "path",
    [
        dead_letter_purged,
        dead_letter_put_back,
        dead_letter_put_back_and_cancelled,
        dead_letter_dropped,
        dead_letter_closed,
    ],
    ids=lambda f: f.__name__,
)
def test_p39_a_dead_letter_keeps_its_callback_until_it_goes(path):
    story = Story(max_dead=1)
    shop = Shop(lapse.Reject)
    ref = weakref.ref(shop)
    story.s.schedule("o", 1, shop.close)
    story.at(1)
    assert shop.ran == 1
    shop.error = None
    del shop
    gc.collect()
    assert ref() is not None
    path(story)
    gc.collect()
    assert ref() is None


def test_p30_a_cancelled_order_is_let_go_at_once(story):
    """Long before its time: the payload, the callback and the id."""
    n = rounds(2_000, 50_000, 1_000_000)
    freed = 0

    class Callback:
        def __call__(self, order):
            pass

        def __del__(self):
            nonlocal freed
            freed += 1

    def one(i):
        story.s.schedule("o", 1800, Callback(), payload=b"x" * 1024)
        assert story.s.cancel("o") and freed == i + 1  # when cancel returns

    for i in range(n):
        one(i)
    before = story.s.stats()["bytes"], rss()
    for i in range(n, 2 * n):
        one(i)
    assert story.s.stats()["bytes"] <= before[0]
    if not SANITIZED:
        assert rss() - before[1] < 5 << 20
    story.s.handle("q", Callback())
    story.s.handle("q", None)
    assert freed == 2 * n + 1


def test_p39_an_order_keeps_its_callback_alive(story):
    seen = []
    story.s.schedule("o", 1, lambda order: seen.append(order))
    gc.collect()
    story.at(1)
    assert seen == ["o"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_cycles_through_callbacks_are_collected(workers):
    class Owner:
        def __init__(self):
            self.s = lapse.Scheduler(
                workers=workers, on_error=self.on_error, on_dead=self.on_dead
            )
            self.s.handle("q", self.close)
            for i in range(600):
                self.s.schedule(f"o{i}", 3600, self.close)

        def on_error(self, order, error):
            pass

        def on_dead(self, info, reason):
            pass

        def close(self, order):
            self.s.cancel(order)

    before = threading.active_count()
    owner = Owner()
    refs = [weakref.ref(owner), weakref.ref(owner.s)]
    del owner
    gc.collect()
    assert not any(ref() for ref in refs)
    until(lambda: threading.active_count() <= before, "the end of the worker")


def test_the_collector_sees_the_callbacks(story):
    shop = Shop()
    story.s.schedule("o", 1, shop.close)
    assert any(getattr(x, "__self__", None) is shop for x in gc.get_referents(story.s))


def test_dropping_warns_about_orders_that_will_not_run(caplog):
    s = lapse.Scheduler()
    s.schedule("o", 3600, print)
    with pytest.warns(ResourceWarning, match="1 orders will not run"):
        del s
        gc.collect()
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("lapse", "WARNING",
         "1 pending order will not run: their Scheduler was dropped without close()")
    ]


def test_a_finalizer_may_use_the_scheduler(story):
    log = []

    class Chatty:
        def __call__(self, order):
            pass

        def __del__(self):
            try:
                log.append(story.s.schedule(f"n{len(log)}", 1, story.mark))
            except lapse.Closed:
                log.append("closed")

    story.s.schedule("a", 0, Chatty())
    story.s.schedule("b", 1, Chatty())
    story.s.schedule("c", 1, Chatty())
    story.s.schedule("d", 9, Chatty())
    story.at(0)
    assert len(log) == 1
    assert story.s.cancel("b") and len(log) == 2
    story.s.schedule("c", 1, story.mark, replace=True)
    assert len(log) == 3 and story.pending == 5
    story.s.close()
    assert log[3:] == ["closed"]


# -- Every way for an order to end, n times ------------------------------------------------


def schedule_and_cancel(story, i):
    story.s.schedule(f"c{i}", 60, story.shop.close, payload=b"x" * 50)
    story.s.cancel(f"c{i}")


def schedule_and_fire(story, i):
    story.s.schedule(f"f{i}", 0.001 * (i % 100), story.shop.close)
    story.run()


def error(story, i):
    story.s.schedule(f"e{i}", 0, story.fails.close)
    story.run()
    story.s.purge(f"e{i}")
    with pytest.raises(lapse.BadId):
        story.s.schedule("", 0, story.fails.close)


def replace(story, i):
    story.s.schedule("r", 60, story.shop.close)
    story.s.schedule("r", 30, story.fails.close, replace=True)
    story.s.reschedule("r", 60 + i % 7)
    story.s.schedule("r", 0, story.shop.close, b"x", replace=True)
    story.run()


def handle(story, i):
    story.s.handle("h", story.fails.close if i % 2 else story.hopeless.close)
    story.s.schedule(f"h{i}", 0, queue="h")
    story.run()
    story.s.purge(f"h{i}")
    story.s.cancel(f"h{i}")


def take(story, i):
    story.s.schedule(f"t{i}", 0)
    with story.s.take(timeout=0) as claim:
        claim.renew(5)


def look(story, i):
    story.s.schedule("l", 60, story.shop.close, payload=b"x")
    story.s.get("l"), story.s.orders(), story.s.stats(), story.s.queue_stats("")
    story.s.cancel("l")


def close(story, i):
    s = lapse.Scheduler(workers=0, clock=story.clock, on_error=story.on_error)
    s.handle("h", story.shop.close)
    s.schedule("o", 60, story.shop.close, payload=b"x")
    s.schedule("p", 60, lambda order: s.cancel("o"))
    s.schedule("q", 60, queue="h")
    s.close()


def drop(story, i):
    s = lapse.Scheduler(workers=0, clock=story.clock, on_dead=story.on_dead)
    s.handle("h", story.shop.close)
    s.schedule("o", 60, story.shop.close, payload=b"x")
    s.cancel("o")


class Churned(Story):
    def __init__(self):
        super().__init__(on_error=self.on_error, on_dead=self.on_dead)
        self.shop, self.fails, self.hopeless = Shop(), Shop(ValueError), Shop(lapse.Reject)

    @staticmethod
    def on_error(order, error):
        pass

    @staticmethod
    def on_dead(info, reason):
        pass

    def run(self):
        """What is due now, at the end of this tick."""
        self.clock.advance(0.1)
        self.s.process()

    def churn(self, way, n):
        for i in range(n):
            way(self, i)


WAYS = [schedule_and_cancel, schedule_and_fire, error, replace, handle, take, look, close, drop]


def rss() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_p39_nothing_is_left_behind(way):
    """No object and less than 1 MiB, after a million in the tier soak."""
    n = rounds(500, 20_000, 1_000_000)
    story = Churned()
    story.churn(way, max(n // 10, 500))  # until the allocators have what they need
    gc.collect()
    objects, blocks, memory = len(gc.get_objects()), sys.getallocatedblocks(), rss()
    story.churn(way, n)
    gc.collect()
    grown = sys.getallocatedblocks() - blocks, rss() - memory
    assert len(gc.get_objects()) - objects <= 1  # the tuple above
    assert grown[0] < 100
    if not SANITIZED:  # a sanitizer keeps freed memory for a while
        assert grown[1] < 1 << 20
    assert story.s.stats()["pending"] == story.s.stats()["running"] == 0


def test_schedulers_leave_nothing_behind():
    def one():
        with lapse.Scheduler(workers=1) as s:
            s.schedule("now", 0, lambda order: None)
            s.schedule("late", 3600, lambda order: None)

    for _ in range(rounds(20, 600, 600)):  # until the interpreter's free lists are full
        one()
    gc.collect()
    fds = len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    for _ in range(rounds(1, 100, 100)):  # what the free lists hold comes to be traced
        one()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(rounds(20, 300, 3000)):
        one()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 4_000  # less than an object per scheduler
    assert len(os.listdir("/proc/self/fd")) == fds


def test_lookups_of_attributes_are_by_interned_names(story):
    """CPython's cache of attributes keeps the names it was asked for, thousands of them: each
    has to be the same object every time."""

    class Callback:
        def __call__(self, order):
            pass

    def many():
        for _ in range(500):
            story.s._lazy = True  # as if no worker had been started yet
            story.s.schedule("o", timedelta(seconds=60), Callback(), replace=True)
            story.s.schedule("p", 60, functools.partial(print))
            story.s.cancel("p")
            story.s.schedule("t", 0, queue="t")
            with story.s.take("t", timeout=0):
                pass

    many()
    tracemalloc.start()
    many()
    gc.collect()
    # A str of ASCII has 49 bytes, and a name of an attribute from 4 characters on.
    strings = [t.size for t in tracemalloc.take_snapshot().traces if 52 < t.size < 70]
    tracemalloc.stop()
    assert len(strings) < 50
