# tiers: full soak
"""Memory stays flat over calls that wait for a durable store, and over its callbacks."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from durable import LUA, durable, pending
from nginx import eventually

ROUNDS = {"full": 24, "soak": 240}[os.environ.get("LAPSE_TIER", "full")]
ORDERS = 400  # of one round
SANITIZED = "LAPSE_SANITIZED" in os.environ  # what is freed is kept back for a while

# Compiled once: what LuaJIT keeps of the code of each request is not meant here.
START = """
    package.loaded.count = { ran = 0 }
    lapse.handle("counted", function()
        package.loaded.count.ran = package.loaded.count.ran + 1
    end)

    local function pay(id)
        assert(lapse.get(id))
        assert(lapse.reschedule(id, 7200))
        assert(lapse.cancel(id))
    end

    function package.loaded.count.round(number, count)
        local orders, threads = {}, {}
        for i = 1, count do
            orders[i] = {
                id = number .. "-" .. i, queue = "counted", delay = i % 2 == 0 and 0 or 3600,
            }
        end
        assert(select(2, lapse.schedule_many(orders)) == count)
        for i = 1, count, 2 do -- those that are not due
            threads[#threads + 1] = ngx.thread.spawn(pay, orders[i].id)
        end
        for _, thread in ipairs(threads) do
            assert(ngx.thread.wait(thread))
        end
        assert(lapse.stats() and lapse.metrics())
    end
"""


def anonymous(pid: int) -> int:
    """Kilobytes of memory of its own that a process has; not what it maps of the store's files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^RssAnon:\s*(\d+) kB", status, re.MULTILINE)[1])  # type: ignore[index]


def test_memory_is_flat(tmp_path: Path) -> None:
    with durable(tmp_path, START, url="&keep=0s", workers=1) as nginx:
        worker = nginx.workers()[0]
        sizes, heaps = [], []
        for number in range(ROUNDS):
            nginx.lua(f"package.loaded.count.round({number}, {ORDERS})")
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


def wakes(pid: int) -> int:
    """How often the threads of a process have slept."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(
        int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.M)[1])  # type: ignore[index]
        for task in tasks
    )


def test_an_idle_worker_hardly_wakes_up(tmp_path: Path) -> None:
    """Orders that are not due, or that nobody here handles, cost nothing."""
    with durable(tmp_path, workers=1) as nginx:
        nginx.lua(LUA + """
            assert(lapse.put { id = "a", queue = "fired", delay = 3600 })
            assert(lapse.put { id = "b", queue = "others" })
            assert(lapse.put { id = "c", queue = "fired" })
        """)
        eventually(lambda: nginx.fired() == ["c"], "one fires")
        eventually(lambda: pending(tmp_path) == {"a", "b"}, "it is settled")
        before = wakes(nginx.workers()[0])
        time.sleep(4)  # sleeps: idle
        each_second = (wakes(nginx.workers()[0]) - before) / 4
        print(f"{each_second} wakes a second")
        assert each_second < 50
