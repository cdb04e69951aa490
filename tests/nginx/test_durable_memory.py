# tiers: full soak
"""Memory stays flat over calls that wait for a durable store, and over its callbacks."""

from __future__ import annotations

import os
import re
from pathlib import Path

from durable import LUA, durable
from nginx import eventually

ROUNDS = {"full": 24, "soak": 240}[os.environ.get("LAPSE_TIER", "full")]
ORDERS = 400  # of one round
SANITIZED = "LAPSE_SANITIZED" in os.environ  # what is freed is kept back for a while

ROUND = LUA + """
    local number = %d
    local orders = {}
    for i = 1, %d do
        orders[i] = { id = number .. "-" .. i, queue = "counted", delay = i %% 2 == 0 and 0 or 3600 }
    end
    assert(select(2, lapse.schedule_many(orders)) == #orders)
    local threads = {}
    for i = 1, #orders, 2 do -- those that are not due
        threads[#threads + 1] = ngx.thread.spawn(function()
            assert(lapse.get(orders[i].id))
            assert(lapse.reschedule(orders[i].id, 7200))
            assert(lapse.cancel(orders[i].id))
        end)
    end
    for _, thread in ipairs(threads) do
        assert(ngx.thread.wait(thread))
    end
    assert(lapse.stats() and lapse.metrics())
"""


def anonymous(pid: int) -> int:
    """Kilobytes of memory of its own that a process has; not what it maps of the store's files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^RssAnon:\s*(\d+) kB", status, re.MULTILINE)[1])  # type: ignore[index]


def test_memory_is_flat(tmp_path: Path) -> None:
    more = """
        package.loaded.count = { ran = 0 }
        lapse.handle("counted", function()
            package.loaded.count.ran = package.loaded.count.ran + 1
        end)
    """
    with durable(tmp_path, more, url="&poll=1s", workers=1) as nginx:
        worker = nginx.workers()[0]
        sizes, heaps = [], []
        for number in range(ROUNDS):
            nginx.lua(ROUND % (number, ORDERS))
            wanted = str((number + 1) * ORDERS // 2)
            eventually(lambda: nginx.lua("return package.loaded.count.ran") == wanted, "all ran", 120)
            heaps.append(int(float(nginx.lua("""
                collectgarbage() collectgarbage()
                return collectgarbage "count"
            """))))  # fmt: skip
            sizes.append(anonymous(worker))
        half = ROUNDS // 2
        calls = 4 * ORDERS * (ROUNDS - half)
        print(f"{calls} calls; kB of its own: {sizes[half]} to {sizes[-1]}, "
              f"of Lua: {heaps[half]} to {heaps[-1]}")  # fmt: skip
        # 16 bytes a call would be a leak of the smallest object.
        assert heaps[-1] - heaps[half] < 16 * calls // 1024
        if not SANITIZED:
            assert sizes[-1] - sizes[half] < max(16 * calls // 1024, 512)
