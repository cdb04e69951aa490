"""Dead letters: listed, put back, deleted, bounded."""

import lapse
import pytest
from lapse import Fate, Reason, State
from support import Story


def rejects(order):
    raise lapse.Reject("no such account")


@pytest.fixture
def dead(story):
    """A story with three dead letters of a handler, a, b and c."""
    story.s.handle("q", rejects)
    for name in "abc":
        story.s.schedule(name, 1, queue="q", payload=name.encode())
    story.at(1)
    return story


def test_they_are_listed(dead):
    letters = dead.s.orders(State.DEAD)
    assert sorted(info.id for info in letters) == ["a", "b", "c"]
    for info in letters:
        assert (info.state, info.queue, info.payload) == (State.DEAD, "q", info.id.encode())
        assert (info.reason, info.error) == (Reason.REJECTED, "no such account")
        assert (info.attempt, info.remaining) == (1, 0)
        assert info.due == 1767225601.0 and info.ended == pytest.approx(info.due, abs=0.01)
    assert dead.s.get("a") in letters
    assert dead.s.cancel("a") is Fate.UNKNOWN
    assert dead.s.stats()["dead"] == dead.s.queue_stats("q")["dead"] == 3


def test_requeue(dead):
    old = dead.s.get("a").generation
    dead.s.handle("q", dead.mark)
    generation = dead.s.requeue("a", 5)
    assert generation > old and dead.s.get("a").remaining == 5
    assert dead.s.get("a").state is State.PENDING
    with pytest.raises(lapse.Unknown):
        dead.s.requeue("a")
    assert dead.s.requeue(b"b", generation=dead.s.get("b").generation) > generation
    assert dead.at(2) == ["b"] and dead.at(6) == ["a"]
    order = dead.ran[-1]
    assert (order.attempt, order.payload, order.generation) == (1, b"a", generation)
    assert dead.s.stats()["requeued"] == 2 and dead.s.stats()["dead"] == 1


def test_requeue_refuses(dead):
    dead.s.schedule("a", 60, dead.mark)
    with pytest.raises(lapse.Exists):
        dead.s.requeue("a")
    for unknown in ("nobody", "x" * 300, "a\0b", ""):
        with pytest.raises(lapse.Unknown):
            dead.s.requeue(unknown)
    with pytest.raises(lapse.Unknown):
        dead.s.requeue("b", generation=999)
    for delay, error in ((float("nan"), lapse.Range), ("1", TypeError), (True, TypeError)):
        with pytest.raises(error):
            dead.s.requeue("b", delay)
    with pytest.raises(TypeError):
        dead.s.requeue()
    dead.s.stop()
    with pytest.raises(lapse.Closed):
        dead.s.requeue("b")
    assert dead.s.stats()["dead"] == 3


def test_an_own_callback_is_kept_for_a_requeue(story):
    attempts = []

    def once(order):
        attempts.append(order.attempt)
        if len(attempts) == 1:
            raise lapse.Reject

    story.s.schedule("a", 1, once)
    story.at(1)
    del once
    story.s.requeue("a")
    story.at(2)
    assert attempts == [1, 1] and story.s.stats()["dead"] == 0


def test_requeue_starts_the_workers():
    import threading

    ran = threading.Event()
    with lapse.Scheduler(max_pending=1, overflow="dead_letter_oldest") as s:
        s.handle("q", lambda order: ran.set())
        s.schedule("a", 60, queue="q")
        s.schedule("b", 60, queue="q")
        assert s.cancel("b")
        s.requeue("a")
        assert ran.wait(30)


def test_purge(dead):
    first = dead.s.get("a").generation
    dead.s.schedule("a", 1, queue="q")
    dead.at(2)
    assert dead.s.purge("nobody") == dead.s.purge("a\0b") == dead.s.purge("a", 999) == 0
    assert dead.s.purge("a", first) == 1 and dead.s.get("a").generation > first
    assert dead.s.purge(b"a") == 1 and dead.s.get("a") is None
    dead.s.schedule("pending", 60, dead.mark)
    assert dead.s.purge() == 2 and dead.s.purge(None) == 0
    assert dead.pending == 1 and dead.s.stats()["purged"] == 4
    with pytest.raises(TypeError):
        dead.s.purge(5)


def test_they_are_bounded():
    story = Story(max_dead=2)
    for name in "abcd":
        story.s.schedule(name, 1, rejects)
    story.at(1)
    assert sorted(info.id for info in story.s.orders(State.DEAD)) == ["c", "d"]
    assert story.s.stats()["dead_dropped"] == 2
    assert story.s.stats()["dead_by"]["rejected"] == 4


def test_the_last_error_is_clipped_and_escaped():
    story = Story(on_error=lambda order, error: None)

    def fails(order):
        raise ValueError("line one\nline two \x1b[31m" + "x" * 2000)

    story.s.handle("q", fails, attempts=1)
    story.s.schedule("a", 0, queue="q")
    story.at(0)
    error = story.s.get("a").error
    assert error.startswith("ValueError: line one") and len(error.encode()) <= 1000
    assert error.isprintable()
