"""A callable lives exactly as long as an order has it, however many orders share it."""

import random
import threading
import weakref

import lapse
import pytest
from support import PATIENCE, rounds


def function(ran: list | None = None):
    """A new function, unlike all others."""

    def callback(order):
        if ran is not None:
            ran.append(order.id)

    return callback


@pytest.fixture
def s():
    with lapse.Scheduler(workers=0) as scheduler:
        yield scheduler


def test_the_last_order_takes_the_function_with_it(s):
    callback = function()
    alive = weakref.ref(callback)
    for number in range(1000):
        s.schedule(str(number), 3600, callback)
    del callback
    for number in range(999):
        assert s.cancel(str(number))
    assert alive()
    assert s.cancel("999")
    assert alive() is None


@pytest.mark.parametrize("functions", [1, 2, 16, 17, 200])
def test_orders_of_several_functions_in_any_order(s, functions):
    chance = random.Random(functions)
    callbacks = [function() for _ in range(functions)]
    alive = [weakref.ref(callback) for callback in callbacks]
    left = [0] * functions
    pending = {}
    for number in range(rounds(2000, 20000, 200000)):
        which = chance.randrange(functions)
        s.schedule(str(number), 3600, callbacks[which])
        left[which] += 1
        pending[str(number)] = which
        if chance.random() < 0.3:
            order_id = chance.choice(list(pending)[:50])
            left[pending.pop(order_id)] -= 1
            assert s.cancel(order_id)
    del callbacks
    ids = list(pending)
    chance.shuffle(ids)
    for order_id in ids:
        which = pending[order_id]
        assert alive[which]()
        left[which] -= 1
        assert s.cancel(order_id)
        assert (alive[which]() is None) == (left[which] == 0)


def test_an_order_that_is_refused_leaves_nothing(s):
    callback = function()
    alive = weakref.ref(callback)
    s.schedule("a", 3600, callback)
    with pytest.raises(lapse.Exists):
        s.schedule("a", 3600, callback)
    with pytest.raises(lapse.Exists):
        s.schedule("a", 3600, other := function())
    refused = weakref.ref(other)
    del other, callback
    assert refused() is None and alive()
    assert s.cancel("a")
    assert alive() is None


def test_a_handler_and_an_order_share_a_function(s):
    callback = function()
    alive = weakref.ref(callback)
    s.schedule("a", 3600, callback)
    s.handle("queue", callback)
    del callback
    s.cancel("a")
    assert alive()
    s.handle("queue", None)
    s.process()
    assert alive() is None


def test_replaced_and_finished_orders_let_go(s):
    old, new = function(), function(ran := [])
    alive = [weakref.ref(old), weakref.ref(new)]
    s.schedule("a", 3600, old)
    s.schedule("a", 0, new, replace=True)
    del old, new
    assert alive[0]() is None and alive[1]()
    while not ran:
        s.process()
    assert ran == ["a"] and alive[1]() is None


def test_orders_released_by_other_threads_at_once():
    """Workers run and settle while this thread schedules with the same function."""
    total, lock = rounds(3000, 30000, 300000), threading.Lock()
    count, finished = 0, threading.Event()

    def callback(order):
        nonlocal count
        with lock:
            count += 1
            if count == total:
                finished.set()

    alive = weakref.ref(callback)
    with lapse.Scheduler(workers=4) as s:
        for number in range(total):
            s.schedule(str(number), 0, callback)
        assert finished.wait(PATIENCE)
        s.schedule("last", 3600, callback)
        del callback
        s.cancel("last")
    assert alive() is None


def test_close_lets_go_of_all():
    with lapse.Scheduler(workers=0) as s:
        callbacks = [function() for _ in range(100)]
        alive = [weakref.ref(callback) for callback in callbacks]
        for number in range(1000):
            s.schedule(str(number), 3600, callbacks[number % 100])
        del callbacks
        assert all(a() for a in alive)
    assert not any(a() for a in alive)
