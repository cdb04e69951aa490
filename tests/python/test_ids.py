# tiers: quick full
"""Ids and payloads are bytes: kept as they are, never cut, never merged."""

import copy
import pickle
import unicodedata

import lapse
import pytest
from lapse import Fate


def test_p52_an_embedded_nul(story):
    s = story.s
    s.schedule("a", 1, story.mark)
    for bad in (b"a\0b", "a\0c", "\0", "a\0"):
        with pytest.raises(lapse.BadId):
            s.schedule(bad, 0.05, story.mark)
        with pytest.raises(lapse.BadId):
            lapse.schedule(bad, 0.05, story.mark)
        assert s.cancel(bad) is Fate.UNKNOWN
        assert s.reschedule(bad, 0) is Fate.UNKNOWN
        assert s.get(bad) is None
    assert story.pending == 1 and s.get("a").remaining == 1


@pytest.mark.parametrize("payload", [b"", b"\0", b"a\0b\x80\xff", bytes(range(256)) * 40])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_p52_payload_bytes_come_back(story, payload, kind):
    story.s.schedule(b"a", 0, story.mark, payload=kind(payload))
    assert story.s.get("a").payload == payload
    story.s.schedule("queued", 0, payload=kind(payload), queue="q")
    assert story.at(0) == ["a"]
    assert story.ran[0].payload == payload and type(story.ran[0].payload) is bytes
    with story.s.poll("q") as claim:
        assert claim.payload == payload


def test_p52_bytes_and_str_are_one_id(story):
    story.s.schedule(b"caf\xc3\xa9", 1, story.mark)
    with pytest.raises(lapse.Exists):
        story.s.schedule("caf\xe9", 1, story.mark)
    assert story.s.cancel("caf\xe9") is Fate.CANCELLED
    raw = b"\xff\xfe\x80"
    story.s.schedule(raw, 0, story.mark)
    assert story.at(0) == [raw.decode("utf-8", "surrogateescape")]
    assert story.ran[0].encode("utf-8", "surrogateescape") == raw
    story.s.schedule(story.ran[0], 1, story.mark)  # what came out goes in again
    assert story.s.cancel(raw) is Fate.CANCELLED
    with pytest.raises(lapse.BadId):
        story.s.schedule("\ud800", 1, story.mark)


@pytest.mark.parametrize("bad", ["", b"", "x" * 256, b"x" * 256, "\xe9" * 128])
def test_ids_have_1_to_255_bytes(story, bad):
    with pytest.raises(lapse.BadId) as caught:
        story.s.schedule(bad, 1, story.mark)
    assert isinstance(caught.value, ValueError)
    assert story.s.cancel(bad) is Fate.UNKNOWN
    for good in ("x", "x" * 255, b"y" * 255, "\xe9" * 127):
        story.s.schedule(good, 1, story.mark)
    assert len(story.at(1)) == 4


def test_p54_two_spellings_of_one_name(story):
    ids = [
        unicodedata.normalize("NFC", "caf\xe9-1"),
        unicodedata.normalize("NFD", "caf\xe9-1"),
        "A",
        "a",
        "x",
        "x ",
        "\u212b",
        "\u00c5",
        "1",
        "\uff11",
    ]
    for order_id in ids:
        story.s.schedule(order_id, 0.05, story.mark)
    assert story.pending == len(ids)
    assert story.s.cancel(ids[0]) is Fate.CANCELLED
    assert story.at(0.05) == ids[1:]


@pytest.mark.parametrize("number", [130775545883395173, 5, 1.0, True, 0])
def test_p55_a_number_is_no_id(story, number):
    for call in (
        lambda: story.s.schedule(number, 1, story.mark),
        lambda: story.s.cancel(number),
        lambda: story.s.reschedule(number, 1),
        lambda: story.s.get(number),
        lambda: lapse.schedule(number, 1, story.mark),
    ):
        with pytest.raises(TypeError, match=r"str\("):
            call()
    for wrong in (None, ("a",), bytearray(b"a")):
        with pytest.raises(TypeError):
            story.s.schedule(wrong, 1, story.mark)
    assert story.pending == 0


def test_p55_strings_of_digits_are_exact(story):
    ids = ["130775545883395173", "130775545883395174", "130775545883395172"]
    for order_id in ids:
        story.s.schedule(order_id, 1800.0, story.mark)
    assert story.s.cancel(ids[1]) is Fate.CANCELLED
    assert story.at(1800) == [ids[0], ids[2]]


def test_an_order_is_its_id(story):
    story.s.schedule("OID1", 1, story.mark, b"\0p", "close", False)
    generation = story.s.get("OID1").generation
    story.at(1.25)
    order = story.ran[0]
    assert isinstance(order, str) and type(order) is lapse.Order
    assert order == "OID1" and hash(order) == hash("OID1") and {"OID1": 1}[order] == 1
    assert f"{order}" == "OID1" and order + "!" == "OID1!"
    assert type(order.id) is str and order.id == "OID1"
    assert (order.payload, order.queue, order.attempt) == (b"\0p", "close", 1)
    assert order.generation == generation and order.fence > 0
    assert order.late == 0.25 and order.due == 1767225601.0
    with pytest.raises(AttributeError):
        order.attempt = 2
    for twin in (copy.copy(order), copy.deepcopy(order), pickle.loads(pickle.dumps(order))):
        assert twin == order and type(twin) is lapse.Order
        assert (twin.payload, twin.fence, twin.late) == (b"\0p", order.fence, 0.25)


def test_an_order_can_be_made_for_a_test():
    order = lapse.Order("OID1", attempt=2, payload=b"p", due=5, queue="q")
    assert (order, order.id, order.attempt, order.payload) == ("OID1", "OID1", 2, b"p")
    assert (order.due, order.late, order.fence, order.queue) == (5.0, 0.0, 0, "q")
    with pytest.raises(TypeError):
        lapse.Order(5)

    class Mine(lapse.Order):
        pass

    assert Mine("x").id == "x" and Mine("x").payload == b""
