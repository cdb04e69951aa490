# tiers: small full
"""Every command that looks at or changes orders, on each store, as text and as JSON.

All commands of a test run in one process, on one open store (world.c): in memory, and in the
tier full on a file of SQLite too. test_sqlite.py runs the tool itself, a process for each
command; here one test does so in every tier.
"""

from __future__ import annotations

import calendar
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tool import DONE, NO, USAGE, Ran, Word, lapse, sqlite, world  # noqa: E402

Steps = Callable[..., list[Ran]]


STORES = ["memory"] if os.environ.get("LAPSE_TIER") == "quick" else ["memory", "sqlite"]


@pytest.fixture(params=STORES)
def steps(request: pytest.FixtureRequest, tmp_path: Path) -> Steps:
    """Run steps of world.c on a new store that remembers ended orders for an hour."""
    url = "memory:?keep=1h"
    if request.param == "sqlite":
        url = sqlite(tmp_path) + "?keep=1h"
    return lambda *given: world(url, *given)


def one(ran: Ran, code: int = DONE) -> dict:
    """The one object that a command printed."""
    assert ran.code == code, ran
    (found,) = ran.objects
    return found


def seconds_until(instant: str) -> float:
    """From now to an instant as JSON has it."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{9})Z", instant)
    assert match is not None, instant
    whole = calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))
    return whole + float(match[2]) - time.time()


# -- schedule and get ------------------------------------------------------------------


def test_schedule_and_get(steps: Steps) -> None:
    put, got, text = steps(
        ["schedule", "OID1", "30m", "--queue", "close", "--payload", "two words", "--json"],
        ["get", "OID1", "--json"],
        ["get", "OID1"],
    )
    assert one(put)["id"] == "OID1"
    order = one(got)
    assert order | {"due": 0, "remaining_seconds": 0} == {
        "id": "OID1",
        "state": "pending",
        "queue": "close",
        "due": 0,
        "remaining_seconds": 0,
        "generation": put.objects[0]["generation"],
        "attempt": 0,
        "payload_bytes": 9,
        "payload": "two words",
    }
    assert 1700 < order["remaining_seconds"] <= 1800.001  # the store counts milliseconds, rounded up
    assert 1700 < seconds_until(order["due"]) <= 1800.01
    for line in (r"id +OID1", r"state +pending", r"queue +close", r"payload +two words"):
        assert re.search(rf"^{line}$", text.text, re.MULTILINE), text.text


def test_schedule_as_text(steps: Steps) -> None:
    first, again, replaced, got = steps(
        ["schedule", "OID1", "10"],
        ["schedule", "OID1", "10"],
        ["schedule", "OID1", "1d", "--replace"],
        ["get", "-j", "OID1"],
    )
    assert re.fullmatch(r"OID1 scheduled, generation \d+\n", first.text)
    assert (again.code, again.out) == (NO, b"")
    assert b'order "OID1" is pending already' in again.err
    assert replaced.code == DONE and replaced.text != first.text
    assert one(got)["remaining_seconds"] > 86000


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        ("90", 90),
        ("90.5", 90.5),
        ("90s", 90),
        ("90000ms", 90),
        ("90000000us", 90),
        ("90000000000ns", 90),
        ("1.5m", 90),
        ("0.25h", 900),
        ("1d", 86400),
        ("36525d", 36525 * 86400),
        ("0.000000001d", 0.0000864),
        ("0", 0),
    ],
)
def test_durations(delay: str, seconds: float) -> None:
    _, got = world("memory:", ["schedule", "a", delay], ["get", "-j", "a"])
    assert seconds - 60 <= one(got)["remaining_seconds"] <= seconds + 0.001


@pytest.mark.parametrize(
    "delay",
    ["", " 1s", "1 s", "s", "-1s", "+1s", "1.s", ".5s", "1e3s", "1w", "1S", "1m30s", "nan", "inf",
     "0x10", "1,5s", "36526d", "36525.1d", "99999999999999999999s", "0.0000000001s", "1\n"],
)  # fmt: skip
def test_what_is_no_duration(delay: str) -> None:
    for words in (["schedule", "--", "a", delay], ["requeue", "--all", f"--delay={delay}"]):
        (ran,) = world("memory:", words)
        assert (ran.code, ran.out) == (USAGE, b""), words


def test_instants(steps: Steps) -> None:
    forms = {
        "utc": "2040-01-31T12:00:00Z",
        "east": "2040-01-31T20:00:00+08:00",
        "west": "2040-01-31 09:30:00-0230",
        "short": "2040-01-31t12:00z",
        "part": "2040-01-31T12:00:00.000Z",
        "epoch": "@2211624000",
        "epoch-part": "@2211624000.0",
    }
    put = [["schedule", name, "--at", text] for name, text in forms.items()]
    ran = steps(*put, *(["get", "-j", name] for name in forms))
    dues = [one(r)["due"] for r in ran[len(put) :]]
    # In memory a wall-clock instant is turned into a delay; on disk the store's own rounding
    # counts. Never early, and not a tenth of a second late.
    for due in dues:
        assert "2040-01-31T12:00:00.0" <= due < "2040-01-31T12:00:00.1", dues


def test_an_instant_that_is_past_is_due_at_once(steps: Steps) -> None:
    ran = steps(
        ["schedule", "a", "--at", "1969-12-31T23:00:00Z"],
        ["schedule", "b", "--at", "@0"],
        ["schedule", "c", "--at", "2001-01-01T00:00:00Z"],
        ["list", "--json"],
    )
    assert [r.code for r in ran] == [DONE] * 4
    assert [o["remaining_seconds"] <= 0.01 for o in ran[3].objects] == [True] * 3


@pytest.mark.parametrize(
    "at",
    ["", "now", "2030-01-31", "2030-01-31T12:00:00", "2030-02-30T12:00:00Z", "2030-13-01T12:00Z",
     "2030-01-31T24:00:00Z", "2030-01-31T12:60:00Z", "2030-01-31T12:00:60Z", "30-01-31T12:00:00Z",
     "2030-01-31T12:00:00Zx", "2030-01-31T12:00:00+8", "2030-01-31T12:00:00.Z", "@", "@-1", "@1x",
     "2030-01-31T12:00:00+24:00", "2300-01-01T00:00:00Z", "@99999999999999999999"],
)  # fmt: skip
def test_what_is_no_instant(at: str) -> None:
    (ran,) = world("memory:", ["schedule", "a", "--at", at])
    assert (ran.code, ran.out) == (USAGE, b"")


def test_delay_and_instant_are_not_given_both(steps: Steps) -> None:
    ran = steps(["schedule", "a"], ["schedule", "a", "1s", "--at", "@0"], ["list", "-j"])
    assert [r.code for r in ran] == [USAGE, USAGE, DONE]
    assert ran[2].out == b""


def test_payload_from_a_file(steps: Steps, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 64
    (tmp_path / "payload").write_bytes(payload)
    (tmp_path / "empty").write_bytes(b"")
    ran = steps(
        ["schedule", "a", "1h", "--payload-file", str(tmp_path / "payload")],
        ["schedule", "b", "1h", "--payload-file", str(tmp_path / "empty")],
        ["get", "--raw", "a"],
        ["get", "--json", "a"],
        ["get", "--raw", "b"],
        ["get", "--raw", "a", "b"],
        ["get", "--raw", "--json", "a"],
    )
    assert ran[2].out == payload
    assert bytes.fromhex(one(ran[3])["payload_hex"]) == payload
    assert ran[4].out == b""
    assert [r.code for r in ran[5:]] == [USAGE, USAGE]


def test_a_payload_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "huge").write_bytes(b"x" * (16 * 2**20 + 1))
    (ran,) = world("memory:", ["schedule", "a", "1h", "--payload-file", str(tmp_path / "huge")])
    assert ran.code == USAGE
    assert b"16 MiB" in ran.err


# -- Ids -------------------------------------------------------------------------------

IDS = {
    b"plain": (b"plain", "plain"),
    "订单 1".encode(): ("订单 1".encode(), "订单 1"),
    b"two\nlines": (rb"two\nlines", "two\nlines"),
    b"tab\tcr\resc\x1b[2J": (rb"tab\tcr\resc\x1b[2J", "tab\tcr\resc\x1b[2J"),
    b'quote"back\\slash': (rb'quote"back\\slash', 'quote"back\\slash'),
    b"cut \xe2\x82": (rb"cut \xe2\x82", "cut \ufffd\ufffd"),
    b"latin \xe9t\xe9": (rb"latin \xe9t\xe9", "latin \ufffdt\ufffd"),
    b"overlong \xc0\xaf": (rb"overlong \xc0\xaf", "overlong \ufffd\ufffd"),
    b"surrogate \xed\xa0\x80": (rb"surrogate \xed\xa0\x80", "surrogate \ufffd\ufffd\ufffd"),
    b"beyond \xf4\x90\x80\x80": (rb"beyond \xf4\x90\x80\x80", "beyond " + "\ufffd" * 4),
    "turned \u202e round".encode(): (rb"turned \xe2\x80\xae round", "turned \u202e round"),
    "emoji \U0001f6d2".encode(): ("emoji \U0001f6d2".encode(), "emoji \U0001f6d2"),
    b"-dash": (b"-dash", "-dash"),
    b"x" * 255: (b"x" * 255, "x" * 255),
}


@pytest.mark.parametrize("name", IDS, ids=range(len(IDS)))
def test_ids(steps: Steps, name: bytes) -> None:
    text, decoded = IDS[name]
    put, listed, object_, got, cancelled, hexed = steps(
        ["schedule", "--", name, "1h"],
        ["list"],
        ["list", "--json"],
        ["get", "--json", "--hex", name.hex()],
        ["cancel", "--", name],
        ["cancel", "--json", "--hex", name.hex().upper()],
    )
    assert put.out.startswith(text + b" scheduled")
    assert len(listed.out.splitlines()) == 2 and text in listed.out
    for order in (one(object_), one(got), one(hexed, NO)):
        assert order["id"] == decoded
        exact = order.get("id_hex")
        assert (bytes.fromhex(exact) if exact is not None else decoded.encode()) == name
        assert (exact is None) == ("\ufffd" not in decoded)
    assert cancelled.out == text + b" cancelled\n"
    assert one(hexed, NO)["fate"] in ("done", "unknown")


def test_ids_that_cannot_be(steps: Steps) -> None:
    for bad in ("", "x" * 256):
        for words in (["schedule", bad, "1s"], ["cancel", bad], ["get", bad], ["purge", bad]):
            (ran,) = steps([*words])
            assert ran.code == USAGE
            assert b"an order id is 1 to 255 bytes" in ran.err
    for bad in ("6", "6g", "00", "6100", "61" * 256, ""):
        (ran,) = steps(["cancel", "--hex", bad])
        assert (ran.code, ran.out) == (USAGE, b"")


# -- cancel and reschedule -------------------------------------------------------------


def test_cancel_tells_each_fate(steps: Steps) -> None:
    ran = steps(
        ["schedule", "paid", "1h"],
        ["+take", "held", "qr"],
        ["+done", "over", "qd"],
        ["cancel", "paid"],
        ["cancel", "held"],
        ["cancel", "over"],
        ["cancel", "none"],
    )
    assert [(r.text, r.code) for r in ran[1:]] == [
        ("paid cancelled\n", DONE),
        ("held running\n", NO),
        ("over done\n", NO),
        ("none unknown\n", NO),
    ]


def test_cancel_of_several(steps: Steps) -> None:
    *_, some, all_ = steps(
        ["schedule", "a", "1h"],
        ["schedule", "b", "1h"],
        ["schedule", "c", "1h"],
        ["cancel", "a", "none", "--json", "b"],
        ["cancel", "c"],
    )
    assert (some.code, all_.code) == (NO, DONE)
    assert some.objects == [
        {"id": "a", "fate": "cancelled"},
        {"id": "none", "fate": "unknown"},
        {"id": "b", "fate": "cancelled"},
    ]


def test_a_generation_of_an_order(steps: Steps) -> None:
    old, new, wrong, moved = steps(
        ["schedule", "a", "1h", "-j"],
        ["schedule", "a", "1h", "-j", "--replace"],
        ["cancel", "a", "-g", "1"],
        ["reschedule", "a", "2h", "-g", "1"],
    )
    assert one(new)["generation"] > one(old)["generation"]
    assert [(r.text, r.code) for r in (wrong, moved)] == [("a unknown\n", NO)] * 2


def test_reschedule(steps: Steps) -> None:
    ran = steps(
        ["schedule", "a", "1h"],
        ["+take", "held", "qr"],
        ["reschedule", "a", "2d", "--json"],
        ["get", "a", "-j"],
        ["reschedule", "held", "1h"],
        ["reschedule", "none", "1h"],
        ["reschedule", "a", "soon"],
    )
    assert one(ran[1]) == {"id": "a", "fate": "rescheduled"}
    assert one(ran[2])["remaining_seconds"] > 172700
    assert [(r.text, r.code) for r in ran[3:5]] == [("held running\n", NO), ("none unknown\n", NO)]
    assert (ran[5].code, ran[5].out) == (USAGE, b"")


# -- get and list ----------------------------------------------------------------------


def test_get_of_what_is_not_there(steps: Steps) -> None:
    text, object_, some = steps(
        ["get", "none"],
        ["get", "none", "--json"],
        ["get", "none", "nor", "--json"],
    )
    assert (text.code, text.out) == (NO, b"")
    assert b"none" in text.err
    assert one(object_, NO)["error"] == "Unknown"
    assert [o["id"] for o in some.objects] == ["none", "nor"]


MANY = [
    ["schedule", "p1", "1h", "-q", "blue"],
    ["schedule", "p2", "2h", "-q", "red"],
    ["schedule", "p3", "3h"],
    ["+take", "held", "blue/r"],
    ["+done", "over", "blue/d"],
    ["+reject", "lost", "red/x", "no such account"],
]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "p1 p2 p3 held over lost"),
        (["--state", "pending"], "p1 p2 p3"),
        (["--state", "running"], "held"),
        (["-s", "done"], "over"),
        (["-s", "dead,running"], "lost held"),
        (["--queue", "blue"], "p1"),
        (["--queue", ""], "p3"),
        (["--queue", "none"], ""),
    ],
)
def test_list(steps: Steps, words: list[str], expected: str) -> None:
    *_, text, objects = steps(*MANY, ["list", *words], ["list", "--json", *words])
    assert {o["id"] for o in objects.objects} == set(expected.split())
    heading, *rows = text.text.splitlines()
    assert heading.split() == ["STATE", "DUE", "IN", "ID", "QUEUE"]
    states = {o["id"]: (o["state"], o["queue"] or "-") for o in objects.objects}
    assert {r.split()[-2]: (r.split()[0], r.split()[-1]) for r in rows} == states


def test_list_stops_at_a_limit(steps: Steps) -> None:
    *_, two, one_blue = steps(*MANY, ["list", "-j", "-n", "2"], ["list", "-jn1", "-q", "blue"])
    assert len(two.objects) == 2
    assert [o["id"] for o in one_blue.objects] == ["p1"]


# -- stats, queues, metrics, check, watch ----------------------------------------------


def test_stats(steps: Steps) -> None:
    *_, text, object_ = steps(*MANY, ["stats"], ["stats", "--json"])
    found = one(object_)
    assert (found["pending"], found["running"], found["dead"], found["kept"]) == (3, 1, 1, 1)
    assert found["oldest_due_seconds"] == 0
    assert re.search(r"^pending +3$", text.text, re.MULTILINE)
    assert re.search(r"^oldest due +0s$", text.text, re.MULTILINE)


def test_queues(steps: Steps) -> None:
    *_, text, objects = steps(*MANY, ["queues"], ["queues", "--json"])
    counts = {o["queue"]: (o["pending"], o["running"], o["dead"]) for o in objects.objects}
    assert counts["blue"] == (1, 0, 0)
    assert counts[""] == (1, 0, 0)
    assert counts["blue/r"] == (0, 1, 0)
    assert counts["red/x"] == (0, 0, 1)
    heading, *rows = text.text.splitlines()
    assert heading.split() == ["PENDING", "RUNNING", "DEAD", "OLDEST", "QUEUE"]
    shown = {row.split()[-1]: tuple(map(int, row.split()[:3])) for row in rows}
    assert shown == {name or "-": count for name, count in counts.items()}


def test_metrics(steps: Steps) -> None:
    *_, text, object_ = steps(*MANY, ["metrics"], ["metrics", "--json"])
    # Beside the times, which go on, both are the same.
    lines = [line for line in text.text.splitlines() if line.startswith("#")]
    found = one(object_)
    assert found["content_type"].startswith("text/plain")
    assert [line for line in found["metrics"].splitlines() if line.startswith("#")] == lines
    assert len(lines) > 10 and "lapse_" in lines[0]


def test_check(steps: Steps) -> None:
    text, object_, quiet, stats = steps(
        ["check"], ["check", "--json"], ["check", "--json", "--no-write"], ["stats", "-j"]
    )
    assert text.code == DONE
    assert re.search(r"^healthy +yes$", text.text, re.MULTILINE)
    found = one(object_)
    assert found["healthy"] is True
    assert found["cancel"] is True and found["list"] is True
    assert found["write_seconds"] > 0
    assert "write_seconds" not in one(quiet)
    # The probe is gone.
    assert one(stats)["pending"] == 0 and one(stats)["dead"] == 0


def test_check_of_a_full_store() -> None:
    _, text, object_, quiet = world(
        "memory:?max_pending=1",
        ["schedule", "a", "1h"],
        ["check"],
        ["check", "--json"],
        ["check", "--json", "--no-write"],
    )
    found = one(object_, NO)
    assert (found["healthy"], found["failed"], found["error"]) == (False, "write", "Full")
    assert (text.code, quiet.code) == (NO, DONE)
    assert one(quiet)["healthy"] is True


def test_watch(steps: Steps) -> None:
    *_, text, objects = steps(
        *MANY,
        ["watch", "-n", "2", "-i", "2ms"],
        ["watch", "-n", "3", "-i", "2ms", "--json", "--ahead", "90m"],
    )
    heading, *rows = text.text.splitlines()
    assert heading.split() == "PENDING CHANGE/s RUNNING DEAD DEAD/s OLDEST".split()
    assert [row.split() for row in rows] == [["3", "+0.0", "1", "1", "+0.0", "0s"]] * 2
    assert b"\x1b" not in text.out and b"\r" not in text.out
    assert len(objects.objects) == 3
    for o in objects.objects:
        assert (o["pending"], o["running"], o["dead"], o["due_ahead"]) == (3, 1, 1, 1)
        assert o["pending_change_per_second"] == o["dead_change_per_second"] == 0


# -- Dead letters ----------------------------------------------------------------------

DEAD = [
    ["+reject", "d1", "x", "no such account"],
    ["+reject", "d2", "x", "line\nbreak"],
    ["+reject", "d3", "y"],
]


def test_dead(steps: Steps) -> None:
    *_, text, objects, x, none, first = steps(
        *DEAD,
        ["dead"],
        ["dead", "--json"],
        ["dead", "--json", "--queue", "x"],
        ["dead", "--json", "--reason", "failed"],
        ["dead", "--json", "-r", "rejected", "-n", "1"],
    )
    found = {o["id"]: o for o in objects.objects}
    assert set(found) == {"d1", "d2", "d3"}
    assert found["d1"]["error"] == "no such account"
    assert found["d1"]["reason"] == "rejected" and found["d1"]["attempt"] == 1
    assert abs(seconds_until(found["d1"]["ended"])) < 100
    assert {o["id"] for o in x.objects} == {"d1", "d2"}
    assert (none.out, len(first.objects)) == (b"", 1)
    heading, *rows = text.text.splitlines()
    assert heading.split() == ["REASON", "DIED", "TRIES", "ID", "QUEUE", "ERROR"]
    assert len(rows) == 3
    (row,) = [row for row in rows if " d1 " in row]
    assert row.startswith("rejected ") and row.endswith("  d1  x  no such account")


def test_requeue_one(steps: Steps) -> None:
    *_, done, got, again, none = steps(
        *DEAD,
        ["requeue", "d1", "--delay", "10m", "--json"],
        ["get", "d1", "--json"],
        ["requeue", "d1"],
        ["requeue", "none", "--json"],
    )
    assert one(done)["id"] == "d1"
    order = one(got)
    assert (order["state"], order["attempt"]) == ("pending", 0)
    assert order["generation"] == one(done)["generation"]
    assert 500 < order["remaining_seconds"] <= 600.001  # the store counts milliseconds, rounded up
    assert (again.code, again.out) == (NO, b"")
    assert one(none, NO)["error"] == "Unknown"


def test_requeue_all(steps: Steps) -> None:
    *_, x, rest, none, listed = steps(
        *DEAD,
        ["requeue", "--all", "--queue", "x", "-d", "1h"],
        ["requeue", "--all", "--reason", "rejected", "--json"],
        ["requeue", "--all"],
        ["list", "--json"],
    )
    assert (x.text, x.code) == ("2 requeued\n", DONE)
    assert one(rest) == {"requeued": 1, "failed": 0}
    assert (none.text, none.code) == ("0 requeued\n", DONE)
    assert {(o["id"], o["state"]) for o in listed.objects} == {
        ("d1", "pending"),
        ("d2", "pending"),
        ("d3", "pending"),
    }


def test_requeue_all_goes_on_after_one_that_cannot(steps: Steps) -> None:
    *_, text, object_ = steps(
        *DEAD,
        ["schedule", "d2", "1h"],
        ["requeue", "--all"],
        ["requeue", "--all", "--json"],
    )
    assert (text.text, text.code) == ("2 requeued, 1 not\n", NO)
    assert b"d2" in text.err
    failure, summary = object_.objects
    assert (failure["id"], failure["error"]) == ("d2", "Exists")
    assert summary == {"requeued": 0, "failed": 1}


def test_purge(steps: Steps) -> None:
    *_, one_, again, object_, refused, x, rest, left = steps(
        *DEAD,
        ["+reject", "d4", "x"],
        ["purge", "d1"],
        ["purge", "d1"],
        ["purge", "d2", "none", "--json"],
        ["purge", "--all"],
        ["purge", "--all", "--yes", "--queue", "x"],
        ["purge", "--all", "--yes", "--json"],
        ["dead", "--json"],
    )
    assert (one_.text, one_.code) == ("d1 purged (1)\n", DONE)
    assert (again.text, again.code) == ("d1 unknown\n", NO)
    assert object_.code == NO
    assert object_.objects == [{"id": "d2", "purged": 1}, {"id": "none", "purged": 0}]
    assert (refused.code, refused.out) == (USAGE, b"")
    assert b"add --yes" in refused.err
    assert (x.text, x.code) == ("1 purged\n", DONE)
    assert one(rest) == {"purged": 1, "failed": 0}
    assert left.out == b""


@pytest.mark.parametrize("command", ["requeue", "purge"])
@pytest.mark.parametrize(
    "words",
    [[], ["--all", "a"], ["a", "--queue", "q"], ["a", "--reason", "lost"], ["--all", "-g", "1"]],
)
def test_one_or_all(steps: Steps, command: str, words: list[Word]) -> None:
    (ran,) = steps([command, *words])
    assert (ran.code, ran.out) == (USAGE, b"")


def test_a_store_that_is_full_is_an_answer() -> None:
    _, ran = world("memory:?max_pending=1", ["schedule", "a", "1h"], ["schedule", "b", "1h", "-j"])
    assert one(ran, NO)["error"] == "Full"


def test_an_order_s_life_in_many_processes(tmp_path: Path) -> None:
    url = sqlite(tmp_path)
    assert lapse("schedule", "OID1", "30m", "-q", "close", "-p", "x", url=url).code == DONE
    assert lapse("schedule", "OID1", "1m", url=url).code == NO
    (order,) = lapse("list", "-j", url=url).objects
    assert (order["id"], order["state"], order["queue"]) == ("OID1", "pending", "close")
    assert lapse("reschedule", "OID1", "2h", url=url).text == "OID1 rescheduled\n"
    (order,) = lapse("get", "OID1", "-j", url=url).objects
    assert 7000 < order["remaining_seconds"] <= 7200.001
    assert lapse("cancel", "OID1", url=url).text == "OID1 cancelled\n"
    assert lapse("cancel", "OID1", url=url).text == "OID1 unknown\n"
    assert lapse("list", "-j", url=url).out == b""
