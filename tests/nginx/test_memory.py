# tiers: full soak
"""Memory stays flat: what a timer uses is freed, as are light threads, ties and orders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from nginx import START, Nginx, eventually, resident, running

LUA = 'local lapse, fired = require "resty.lapse", require "fired"\n'
ORDERS = {"full": 20_000, "soak": 200_000}[os.environ.get("LAPSE_TIER", "full")]
ROUND = 1000  # orders of one request
SANITIZED = "LAPSE_SANITIZED" in os.environ  # what is freed is kept back for a while

KINDS = {
    "plain": 'lapse.schedule(id, delay, function() count.ran = count.ran + 1 end)',
    "inline": 'lapse.put { id = id, delay = delay, queue = "inline", payload = id }',
    "cosockets": """
        if i % 5 > 0 then
            lapse.schedule(id, delay, function() count.ran = count.ran + 1 end)
        else
            lapse.put { id = id, delay = delay, queue = "connects", payload = id }
        end
    """,
    "exits": """
        if i % 50 > 0 then
            lapse.schedule(id, delay, function() count.ran = count.ran + 1 end)
        else
            lapse.schedule(id, delay, function() count.ran = count.ran + 1 ngx.exit(0) end)
        end
    """,
}
HANDLERS = """
    package.loaded.count = { ran = 0 }
    local count = package.loaded.count
    lapse.handle("inline", function() count.ran = count.ran + 1 end, { inline = true })
    lapse.handle("connects", function()
        local socket = ngx.socket.tcp()
        assert(socket:connect "unix:%s/sink.sock")
        assert(socket:send "x")
        socket:close()
        count.ran = count.ran + 1
    end)
    lapse.on_error(function() end)
"""
SINK = "server { listen unix:%s/sink.sock; location / { return 204; } }"


def run_round(nginx: Nginx, kind: str, number: int) -> None:
    nginx.lua(LUA + f"""
        local count = package.loaded.count
        for i = 1, {ROUND} do
            local id, delay = "{number}-" .. i, i % 50 / 1000
            {KINDS[kind]}
        end
    """)
    wanted = (number + 1) * ROUND
    eventually(
        lambda: int(nginx.lua("return package.loaded.count.ran")) == wanted, f"{wanted} ran", 120
    )


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_flat(tmp_path: Path, kind: str) -> None:
    rounds = ORDERS // ROUND
    folder = tmp_path
    start = START + HANDLERS % folder
    with running(folder, workers=1, init_worker=start, http=SINK % folder) as nginx:
        worker = nginx.workers()[0]
        sizes, heaps = [], []
        for number in range(rounds):
            run_round(nginx, kind, number)
            heaps.append(int(float(nginx.lua("""
                collectgarbage() collectgarbage()
                return collectgarbage "count"
            """))))  # fmt: skip
            sizes.append(resident(worker))
        quarter = rounds // 4
        print(f"{kind}: {ORDERS} orders; resident kB at each quarter",
              [sizes[i] for i in (0, quarter, 2 * quarter, 3 * quarter, rounds - 1)],
              "Lua kB", heaps[0], heaps[quarter], heaps[-1])  # fmt: skip
        # From the first quarter on: 32 bytes an order would be a leak of one small object.
        allowed = 32 * (ORDERS - quarter * ROUND) // 1024
        assert heaps[-1] - heaps[quarter] < allowed
        if not SANITIZED:
            assert sizes[-1] - sizes[quarter] < max(allowed, 512)


def test_drivers_take_turns(tmp_path: Path) -> None:
    """A driver that has woken up a thousand times is followed by another; nothing is missed."""
    with running(tmp_path, workers=1) as nginx:
        def another_round() -> bool:
            """A second of orders that fall due one by one; whether there was a third driver."""
            return int(nginx.lua(LUA + """
                local ran = 0
                for i = 1, 1000 do
                    lapse.schedule("o" .. i, i / 1000, function() ran = ran + 1 end)
                end
                while ran < 1000 do
                    ngx.sleep(0.01) -- sleeps: until all have run
                end
                return lapse.stats().drivers
            """)) >= 3  # fmt: skip

        eventually(another_round, "a third driver")
        running_count = "return ngx.timer.running_count()"
        eventually(lambda: nginx.lua(running_count) == "1", "the last driver is alone")
