"""One process, one peer, one workload, one size: prints one JSON line.

    python3 bench/python/one.py --list
    python3 bench/python/one.py asyncio const 100000 [SEED]

What is counted is the CPU time of the process, of all its threads: being preempted does not
count. The two `late` workloads are in real time. Ids and delays are made before the clock
of their batch starts.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable

from measure import Finish, batches, held_bytes, number_of
from peers import PEERS, Peer, Sched

HALF_HOUR, SPREAD = 1800.0, 60.0
cpu = time.process_time_ns
Figures = dict[str, float]


def delays_of(numbers: list[int], chance: random.Random) -> list[float]:
    return [HALF_HOUR + SPREAD * chance.random() for _ in numbers]


def fill(peer: Peer, count: int, chance: random.Random) -> int:
    """Schedule them all; what it took."""
    spent = 0
    for numbers, ids in batches(range(count)):
        delays = delays_of(numbers, chance)
        start = cpu()
        peer.schedule(ids, delays)
        peer.turn()
        spent += cpu() - start
    return spent


def never(order_id: str) -> None:
    raise SystemExit(f"{order_id} ran long before its time")


def collection_ms() -> float:
    """A full collection by the collector, the median of five."""
    found = []
    for _ in range(5):
        start = time.thread_time_ns()
        gc.collect()
        found.append(time.thread_time_ns() - start)
    return statistics.median(found) / 1e6


def run_const(make: type[Peer], count: int, chance: random.Random) -> Figures:
    empty = collection_ms()
    before = held_bytes()
    peer = make(count, never)
    spent = fill(peer, count, chance)
    held = held_bytes() - before
    figures = {
        "schedule_ns": spent / count,
        "bytes": held / count,
        "gc_ms": collection_ms(),
        "gc_empty_ms": empty,
    }
    peer.close()
    return figures


def run_cancel(make: type[Peer], count: int, chance: random.Random) -> Figures:
    """All of them, in random order. sched, which searches, is asked for fewer."""
    order = list(range(count))
    chance.shuffle(order)
    if issubclass(make, Sched):
        order = order[: max(10, min(count, make.cancels // count))]
    peer = make(count, never)
    fill(peer, count, chance)
    spent = 0
    for numbers, ids in batches(order):
        start = cpu()
        peer.cancel(ids, numbers)
        peer.turn()
        spent += cpu() - start
    if peer.pending() != count - len(order):
        raise SystemExit(f"{peer.pending()} of {count} are pending after {len(order)} cancels")
    peer.close()
    return {"cancel_ns": spent / len(order), "cancels": len(order)}


def schedule_at(
    peer: Peer, count: int, at: Callable[[], float], note: Callable[[int, float], object]
) -> None:
    """Schedule orders for instants of the monotonic clock, and note when each is due: its
    delay after a moment before the call."""
    for numbers, ids in batches(range(count)):
        now = time.monotonic()
        delays = [at() - now for _ in numbers]
        for number, delay in zip(numbers, delays, strict=True):
            note(number, now + delay)
        peer.schedule(ids, delays)


def lead_for(peer_name: str, count: int) -> float:
    """Seconds that scheduling may take before the first is due."""
    slow = {"timer": 1e-3, "apscheduler": 1e-3}.get(peer_name, 3e-5)
    return 1 + slow * count


def run_fire(make: type[Peer], count: int, chance: random.Random) -> Figures:
    """All fall due within `count` microseconds: more than anybody can run in time."""
    peer: Peer

    def finish() -> None:
        peer.finish()

    done = Finish(count, finish)
    peer = make(count, done.callback)
    start = time.monotonic() + lead_for(NAMES[make], count)
    schedule_at(peer, count, lambda: start + chance.random() * count / 1e6, lambda *_: None)
    if time.monotonic() > start:
        raise SystemExit("scheduling took longer than the first delay")
    before = cpu()
    peer.run()
    figures = {"fire_ns": (done.last_cpu - before) / count}
    if done.ran() != count:
        raise SystemExit("an order ran twice")
    peer.close()
    return figures


def nothing() -> None:
    pass


def lateness(
    make: type[Peer], count: int, chance: random.Random, disturb: Callable[[], object] = nothing
) -> list[float]:
    """Seconds from due to start, for `count` orders within five seconds."""
    due, late = [0.0] * count, [float("nan")] * count
    clock = time.monotonic
    peer: Peer

    def mark(order_id: str) -> None:
        number = number_of(order_id)
        late[number] = clock() - due[number]
        counted(order_id)

    def finish() -> None:
        peer.finish()

    counted = Finish(count, finish).callback
    peer = make(count, mark)
    start = clock() + lead_for(NAMES[make], count)
    schedule_at(peer, count, lambda: start + 5 * chance.random(), due.__setitem__)
    if clock() > start:
        raise SystemExit("scheduling took longer than the first delay")
    gc.collect()
    disturb()
    peer.run()
    peer.close()
    return sorted(late)


def late_figures(late: list[float]) -> Figures:
    last = len(late) - 1
    if any(seconds != seconds for seconds in late):
        raise SystemExit("an order did not run")
    names = {"min_ms": 0.0, "p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    figures = {name: late[int(share * last)] * 1e3 for name, share in names.items()}
    return {"early": sum(seconds < 0 for seconds in late), **figures}


def run_late(make: type[Peer], count: int, chance: random.Random) -> Figures:
    before = cpu()
    late = lateness(make, count, chance)
    return {**late_figures(late), "cpu_ms": (cpu() - before) / 1e6}


def burn() -> None:
    """A thread of pure Python: it gives up the GIL only when it is asked to."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def run_late_gil(make: type[Peer], count: int, chance: random.Random) -> Figures:
    burner = threading.Thread(target=burn, daemon=True)
    return late_figures(lateness(make, count, chance, burner.start))


WORKLOADS = {
    "const": run_const,
    "cancel": run_cancel,
    "fire": run_fire,
    "late": run_late,
    "late-gil": run_late_gil,
}
NAMES = {make: name for name, make in PEERS.items()}


def list_peers() -> None:
    """A line for each that can be imported: name, version, sizes; on stderr what lacks."""
    for name, make in PEERS.items():
        try:
            print(json.dumps({"peer": name, "version": make.version(), "sizes": make.sizes}))
        except ImportError as error:
            print(f"without {name}: {error}; install {make.package}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    if arguments == ["--list"]:
        list_peers()
        return 0
    if len(arguments) not in (3, 4) or arguments[0] not in PEERS or arguments[1] not in WORKLOADS:
        print(__doc__, file=sys.stderr)
        return 2
    name, workload, count = arguments[0], arguments[1], int(arguments[2])
    chance = random.Random(int(arguments[3]) if len(arguments) == 4 else 1)
    PEERS[name].version()  # imports it: not what is measured
    figures = WORKLOADS[workload](PEERS[name], count, chance)
    print(json.dumps({"peer": name, "workload": workload, "n": count, **figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
