"""take and poll: orders that the caller claims and settles itself."""

import gc
import threading
import time

import lapse
import pytest
from support import Story, until_asleep


@pytest.fixture
def due(story):
    """A story with three due orders in the queue "q"."""
    for n in (1, 2, 3):
        story.s.schedule(f"o{n}", n, queue="q")
    story.at(3)
    return story


def test_in_due_order_and_done(due):
    seen = []
    while claim := due.s.poll("q"):
        with claim as order:
            assert order is claim and order.held and order.attempt == 1
            seen.append(str(order))
        assert not claim.held
    assert seen == ["o1", "o2", "o3"] and due.s.poll() is None
    assert due.s.stats()["done"] == 3


def test_queues_are_apart(due):
    due.s.schedule("other", 0, queue="r")
    due.s.schedule("plain", 0)
    assert due.s.poll("nobody") is None
    assert due.s.poll("r") == "other" and due.s.poll("") == "plain"
    assert due.s.poll() == "o1"


def test_take_never_yields_an_order_with_a_callback(story):
    story.s.schedule("cb", 0, story.mark)
    assert story.s.take(timeout=0) is None and story.s.poll() is None
    assert story.at(0) == ["cb"]


def test_an_exception_asks_for_a_retry(due):
    with pytest.raises(ZeroDivisionError):
        with due.s.poll("q"):
            raise ZeroDivisionError
    assert due.s.stats()["retried"] == 1
    assert due.s.get("o1").state is lapse.State.PENDING


def test_verdicts_inside_the_block(due):
    with due.s.poll("q"):
        raise lapse.Retry(5)
    with due.s.poll("q"):
        raise lapse.Reject("no such order")
    with due.s.poll("q") as order:
        order.done()
        with pytest.raises(lapse.Stale):
            order.done()
    assert due.s.get("o1").remaining == 5
    assert [info.id for info in due.s.orders(lapse.State.DEAD)] == ["o2"]
    assert due.s.get("o2").error == "no such order" and due.s.get("o3") is None
    due.at(8)
    assert due.s.poll("q").attempt == 2


def test_ctrl_c_gives_back(due):
    with pytest.raises(KeyboardInterrupt):
        with due.s.poll("q"):
            raise KeyboardInterrupt
    assert due.s.stats()["given_back"] == 1
    left = {}
    while claim := due.s.poll("q"):
        with claim:
            left[str(claim)] = claim.attempt
    assert left == {"o1": 1, "o2": 1, "o3": 1}


def test_a_dropped_claim_is_given_back(due):
    claim = due.s.poll("q")
    assert claim == "o1" and due.s.get("o1").state is lapse.State.RUNNING
    del claim
    gc.collect()
    assert due.s.get("o1").state is lapse.State.PENDING
    assert due.s.stats()["given_back"] == 1


def test_explicit_verdicts(due):
    one, two, three = (due.s.poll("q") for _ in range(3))
    one.retry(2)
    two.reject("bad")
    three.give_back()
    assert due.s.get("o1").remaining == 2
    assert due.s.get("o2").reason is lapse.Reason.REJECTED
    again = due.s.poll("q")
    assert again == "o3" and again.attempt == 1
    with pytest.raises(lapse.Range):
        again.retry(float("nan"))
    assert again.held
    again.done()


def test_a_claim_whose_id_was_scheduled_anew_is_stale(due):
    with due.s.poll("q"):
        due.s.schedule("o1", 9, queue="q")
    claim = due.s.poll("q")
    due.s.schedule("o2", 9, queue="q")
    with pytest.raises(lapse.Stale):
        claim.done()
    assert due.s.get("o1").remaining == 9 and due.s.get("o2").remaining == 9


def test_a_claim_is_held_for_its_lease():
    story = Story("memory:?lease=30s")
    story.s.schedule("o", 0)
    claim = story.s.poll()
    story.at(29)
    claim.renew()
    story.at(58)
    claim.renew(60)
    story.at(117)
    assert story.s.poll() is None and claim.held
    story.at(119)
    again = story.s.poll()
    assert again == "o" and again.attempt == 2 and again.fence > claim.fence
    for late in (claim.renew, claim.done):
        with pytest.raises(lapse.Stale):
            late()
    again.done()
    with pytest.raises(lapse.Stale):
        again.renew()


def test_take_waits_and_times_out():
    with lapse.Scheduler(workers=0) as s:
        start = time.monotonic()
        assert s.take(timeout=0.02) is None
        assert time.monotonic() - start >= 0.02
        s.schedule("o", 0.02)
        with s.take(timeout=30) as order:
            assert order == "o"
            assert time.monotonic() - start >= 0.04


def test_stop_ends_a_take():
    with lapse.Scheduler(workers=0) as s:
        outcome = []

        def wait():
            try:
                outcome.append(s.take())
            except lapse.Closed as error:
                outcome.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until_asleep(thread)
        s.stop()
        thread.join(30)
        assert [type(what) for what in outcome] == [lapse.Closed]


def test_many_takers_share_the_work():
    with lapse.Scheduler(workers=0) as s:
        taken, lock = [], threading.Lock()
        s.schedule_many([(f"o{i}", 0.001 * (i % 10)) for i in range(400)])

        def consume():
            while claim := s.take(timeout=0.2):
                with claim as order, lock:
                    taken.append(str(order))

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == sorted(f"o{i}" for i in range(400))


def test_closing_gives_claims_back_and_they_know():
    story = Story()
    story.s.schedule("o", 0)
    claim = story.s.poll()
    story.s.close()
    with pytest.raises(lapse.Closed):
        claim.done()
