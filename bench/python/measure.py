"""What the workloads measure with: ids, memory, and the moment at which all have run.

Nothing here knows a peer.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

BATCH = 1024
ID_FORMAT = "OID%017d"  # 20 bytes, as in bench/core


def batches(numbers: range | list[int]) -> Iterator[tuple[list[int], list[str]]]:
    """The numbers in batches, each with its ids, which nobody else keeps."""
    for start in range(0, len(numbers), BATCH):
        some = list(numbers[start : start + BATCH])
        yield some, [ID_FORMAT % number for number in some]


def number_of(order_id: str) -> int:
    return int(order_id[3:])


def held_bytes() -> int:
    """The anonymous memory of this process, exactly."""
    with open("/proc/self/smaps_rollup") as rollup:
        for line in rollup:
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/smaps_rollup has no line Anonymous")


class Finish:
    """A callback that counts, notes the CPU time of the process when the last of `total` ran, and
    then calls `then`.

    Callbacks of some peers run on several threads: next() on a count is one step under
    the GIL.
    """

    def __init__(self, total: int, then: Callable[[], object]) -> None:
        self.last_cpu = 0
        count = itertools.count(1)
        step = count.__next__

        def callback(order_id: str) -> None:
            if step() == total:
                self.last_cpu = time.process_time_ns()
                then()

        self.callback = callback
        self._step = step

    def ran(self) -> int:
        """How often it was called; to be asked once, at the end."""
        return self._step() - 1
