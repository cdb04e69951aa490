#!/usr/bin/env python3
"""Run a demo and check the story it tells; the same story in C, Python and Lua.

    check_demos.py <demo> <command> [<argument>...]

LAPSE_DEMO_SPEED (20 when it is not set) divides the delays, here and in the demo. A line of
a story is "%6.2f s  %-12s %-8s %s": seconds since the start, the order's id, what happened,
a note. Nothing may come early; how late is only printed, for a machine may be busy.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass

EVENTS = """placed paid closed taken tick attempt failed done dead letter purged
    requeued""".split() + ["too late"]
LINE = re.compile(r"^([ \d]{3}\.\d\d) s  (\S{1,12}) +(" + "|".join(EVENTS) + r") *(.*)$")
LATE = re.compile(r"^late (\d+\.\d) ms$")
ROUNDING = 0.0051  # of two decimals
LIMIT = 120  # seconds that a demo may take on a busy machine


class Wrong(Exception):
    """The story is not the one it should be."""


@dataclass
class Event:
    at: float
    id: str
    what: str
    note: str


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(what)


def parse(line: str) -> Event:
    match = LINE.match(line)
    require(match is not None, f"not a line of a story: {line!r}")
    assert match is not None
    at, order_id, what, note = match.groups()
    wanted = f"{float(at):6.2f} s  {order_id:<12} {what:<8} {note}"
    require(line.rstrip() == wanted.rstrip(), f"odd columns: {line!r} instead of {wanted!r}")
    return Event(float(at), order_id, what, note)


def parse_story(lines: list[str]) -> list[Event]:
    story = [parse(line) for line in lines]
    for before, after in zip(story, story[1:]):
        require(before.at <= after.at, f"{after.id} at {after.at} comes after {before.at}")
    for event in story:
        if event.what in ("closed", "taken"):
            require(LATE.match(event.note) is not None, f"no lateness: {event.note!r}")
    return story


def not_early(event: Event, due: float) -> None:
    require(event.at >= due - ROUNDING, f"{event.id} {event.what} at {event.at}, due at {due:.3f}")


def delay_queue(lines: list[str], speed: float) -> None:
    """Five orders of three seconds, each scheduled when the one before it was taken."""
    story = parse_story(lines)
    require([e.what for e in story] == ["taken"] * 5, f"not five orders: {story}")
    require(len({e.id for e in story}) == 5, "an order was taken twice")
    for number, event in enumerate(story, 1):
        not_early(event, number * 3 / speed)


def timing_wheel(lines: list[str], speed: float) -> None:
    """One order of five seconds beside a clock that ticks each second."""
    story = parse_story(lines)
    ticks = [e for e in story if e.what == "tick"]
    closed = [e for e in story if e.what == "closed"]
    require(len(closed) == 1, f"closed {len(closed)} times")
    not_early(closed[0], 5 / speed)
    before = [e for e in ticks if story.index(e) < story.index(closed[0])]
    require(len(before) >= 4, f"only {len(before)} ticks before the order's time")
    for number, event in enumerate(ticks, 1):
        not_early(event, number / speed)
        require(event.note == str(number), f"tick {number} says {event.note!r}")


SUMMARY = re.compile(r"^(\d+) placed, (\d+) paid, (\d+) closed, stock (\d+)/(\d+)$")


def order_story(order_id: str, events: list[Event], speed: float) -> str:
    """Check one order's life; how it ended."""
    what = [e.what for e in events]
    require(what[0] == "placed", f"{order_id} begins with {what[0]}")
    require(what[1:] in (["paid"], ["closed"], ["closed", "too late"]), f"{order_id}: {what}")
    if what[1] == "closed":
        not_early(events[1], events[0].at - ROUNDING + 3 / speed)
    return what[1]


def shop(lines: list[str], speed: float) -> None:
    """Eight orders; each is paid in time or closed, and stock is what was not given back."""
    require(bool(lines), "no output")
    summary = SUMMARY.match(lines[-1])
    require(summary is not None, f"no summary: {lines[-1]!r}")
    assert summary is not None
    story = parse_story(lines[:-1])
    orders: dict[str, list[Event]] = {}
    for event in story:
        orders.setdefault(event.id, []).append(event)
    ends = [order_story(order_id, events, speed) for order_id, events in orders.items()]
    paid, closed = ends.count("paid"), ends.count("closed")
    told = tuple(int(number) for number in summary.groups())
    require(told == (len(orders), paid, closed, 100 - paid, 100), f"the summary says {lines[-1]!r}")
    require(len(orders) == 8 and paid > 0 and closed > 0, f"{len(orders)} orders, {paid} paid")
    require(any(e.what == "too late" for e in story), "nobody paid too late")


def told(events: list[Event]) -> list[tuple[str, str]]:
    """What happened, each with the first word of its note."""
    return [(e.what, (e.note.split() or [""])[0].rstrip(":,")) for e in events]


def dead_letters(lines: list[str], speed: float) -> None:
    """O1 is done; O2 is rejected and deleted; O3 fails three times, is put back, and done."""
    story = parse_story(lines)
    by_id = {name: [e for e in story if e.id == name] for name in ("O1", "O2", "O3")}
    require(sum(map(len, by_id.values())) == len(story), "an order that nobody placed")
    require(told(by_id["O1"]) == [("done", "attempt")], f"O1: {by_id['O1']}")
    o2, o3 = by_id["O2"], by_id["O3"]
    require(
        told(o2) == [("dead", "rejected"), ("letter", "rejected"), ("purged", "")], f"O2: {o2}"
    )
    ends = [("dead", "failed"), ("letter", "failed"), ("requeued", ""), ("done", "attempt")]
    require(told(o3) == [("failed", "attempt")] * 3 + ends, f"O3: {o3}")
    require(o2[0].note == "rejected: no such account", f"the reason is {o2[0].note!r}")
    require(o3[3].note.endswith("gateway down"), f"the last error is {o3[3].note!r}")
    for attempt, event in enumerate(o3[:3], 1):
        require(event.note == f"attempt {attempt}: gateway down", f"O3: {event.note!r}")
        not_early(event, (0.5, 1.5, 3.5)[attempt - 1] / speed)
    require(o3[-1].note == "attempt 1", f"put back, yet not from the start: {o3[-1].note!r}")
    not_early(o3[-1], o3[-2].at - ROUNDING + 0.5 / speed)


def delayed_retry(lines: list[str], speed: float) -> None:
    """Four attempts, 1, 2 and 4 seconds apart; the last one is done."""
    story = parse_story(lines)
    require([e.what for e in story] == ["attempt"] * 4 + ["done"], f"not four attempts: {story}")
    require(len({e.id for e in story}) == 1, "more than one order")
    require([e.note for e in story[:4]] == ["1", "2", "3", "4"], f"the attempts: {story}")
    for event, due in zip(story, (0, 1, 3, 7), strict=False):
        not_early(event, due / speed)


def durable(lines: list[str], speed: float) -> None:
    """Three orders are placed; their process is gone when one is paid and two are closed, late."""
    story = parse_story(lines)
    placed = [e.id for e in story[:3] if e.what == "placed"]
    require(placed == ["OID1", "OID2", "OID3"], f"placed: {story[:3]}")
    ends = {(e.id, e.what) for e in story[3:]}
    require(
        ends == {("OID1", "closed"), ("OID2", "paid"), ("OID3", "closed")} and len(story) == 6,
        f"how they ended: {story[3:]}",
    )
    for event in story[3:]:
        not_early(event, story[2].at - ROUNDING + 3 / speed)
        if event.what == "closed":
            late = float(event.note.split()[1]) / 1000
            require(late >= 1 / speed - ROUNDING, f"it waited for longer: {event}")


DEMOS = {
    "delay_queue": delay_queue,
    "timing_wheel": timing_wheel,
    "shop": shop,
    "dead_letters": dead_letters,
    "delayed_retry": delayed_retry,
    "durable": durable,
}


def run(demo: str, command: list[str]) -> str:
    """Run `command`, check that it tells the story of `demo`, and return what it printed."""
    speed = float(os.environ.setdefault("LAPSE_DEMO_SPEED", "20"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    try:
        require(done.returncode == 0, f"exit status {done.returncode}")
        require(done.stderr == "", "something on stderr")
        DEMOS[demo](done.stdout.splitlines(), speed)
    except Wrong as wrong:
        raise Wrong(f"{demo}: {wrong}\n{done.stdout}{done.stderr}") from None
    return done.stdout


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in DEMOS:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(run(arguments[0], arguments[1:]), end="")
    except (Wrong, OSError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
