# tiers: full
"""Reload and shutdown: old workers end at once, and their orders go on in the new ones."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from nginx import START, Nginx, eventually, is_alive, running

LUA = 'local lapse, fired = require "resty.lapse", require "fired"\n'
HOUR = LUA + """
    for i = 1, 1000 do
        lapse.put { id = "o" .. i, queue = "fired", delay = 3600 + i }
    end
"""


def pending(nginx: Nginx, worker: int) -> int:
    return int(nginx.lua(LUA + "return lapse.stats().pending", worker))


def gone(pids: list[int]) -> float:
    return eventually(lambda: not any(map(is_alive, pids)), f"workers {pids} end")


def test_each_order_of_two_reloads_fires_once(tmp_path: Path) -> None:
    with running(tmp_path) as nginx:
        for worker in (0, 1):
            nginx.lua(LUA + f"""
                for i = 1, 500 do
                    lapse.put {{ id = "w{worker}-" .. i, queue = "fired", delay = 0.2 + i / 200 }}
                end
            """, worker)  # fmt: skip
        first = nginx.reload()
        time.sleep(0.5)  # sleeps: between two reloads
        second = nginx.reload()
        eventually(lambda: len(nginx.fired()) >= 1000, "1000 fired")
        gone(first + second)
        names = [f"w{worker}-{i}" for worker in (0, 1) for i in range(1, 501)]
        assert Counter(nginx.fired()) == Counter(names)
        assert "end with this worker" not in nginx.log()


def test_never_early_across_a_reload(tmp_path: Path) -> None:
    """The id tells when it is due, on the clock that all processes share."""
    start = START.replace("fired(id)", 'fired(lapse.now() >= tonumber(id) and "on time" or id)')
    with running(tmp_path, init_worker=start) as nginx:
        for worker in (0, 1):
            nginx.lua(LUA + """
                for i = 1, 200 do
                    local delay = 0.5 + i / 200
                    -- What is read before the call is not after the order's time.
                    local id = ("%.9f"):format(lapse.now() + delay)
                    lapse.put { id = id, queue = "fired", delay = delay }
                end
            """, worker)
        nginx.reload()
        eventually(lambda: len(nginx.fired()) == 400, "400 fired")
        assert set(nginx.fired()) == {"on time"}


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_workers_end_at_once_with_orders_pending_for_an_hour(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(tmp_path) as nginx:
        for worker in (0, 1):
            nginx.lua(HOUR.replace('"o"', f'"{worker}-"'), worker)
        workers = nginx.workers()
        began = time.monotonic()
        os.kill(nginx.master, number)
        gone(workers)
        took = time.monotonic() - began
        print(f"gone {took:.2f} s after {number.name}")
        if number == signal.SIGHUP:
            eventually(lambda: pending(nginx, 0) + pending(nginx, 1) == 2000, "all are adopted")
        else:
            assert nginx.process
            nginx.process.wait(60)


def test_a_worker_ends_though_all_its_timers_are_taken(tmp_path: Path) -> None:
    """The watchdog cannot run then; the callback that ends sees to it."""
    with running(tmp_path, workers=1, http="lua_max_running_timers 2;") as nginx:
        nginx.lua(HOUR + """
            lapse.schedule("sleeps", 0, function(id)
                fired(id, "began")
                ngx.sleep(1.5) -- sleeps: longer than the watchdog waits
                fired(id, "ended")
            end)
        """)
        eventually(lambda: len(nginx.fired()) == 1, "it began")
        gone(nginx.reload())
        assert nginx.fired() == ["sleeps began", "sleeps ended"]
        eventually(lambda: pending(nginx, 0) == 1000, "all are adopted")


def test_what_runs_ends_in_the_old_worker_and_is_retried_in_the_new(tmp_path: Path) -> None:
    start = START + """
        lapse.handle("fails", function(id, order)
            fired(id, order.payload, "began", ngx.worker.pid())
            ngx.sleep(0.5) -- sleeps: over the reload
            fired(id, order.payload, "ended", ngx.worker.pid())
            if not ngx.shared.lapse:get "failed" then
                ngx.shared.lapse:set("failed", true)
                error("failed", 0)
            end
        end, { backoff = 0.05 })
    """
    with running(tmp_path, workers=1, init_worker=start) as nginx:
        nginx.lua(LUA + 'lapse.put { id = "OID1", queue = "fails", payload = "7" }')
        eventually(lambda: len(nginx.fired()) == 1, "it began")
        old = nginx.reload()
        eventually(lambda: len(nginx.fired()) == 4, "it ended twice")
        new = nginx.workers()
        assert nginx.fired() == [
            f"OID1 7 {what} {pid}" for pid in old + new for what in ("began", "ended")
        ]
        gone(old)


def test_bytes_travel_as_they_are(tmp_path: Path) -> None:
    start = START + """
        lapse.handle("q 1 -1 ", function(id, order)
            local hex = (id .. "|" .. (order.payload or "nil")):gsub(".", function(c)
                return ("%02x"):format(c:byte())
            end)
            fired(hex)
        end)
    """
    with running(tmp_path, workers=1, init_worker=start) as nginx:
        nginx.lua(LUA + """
            lapse.put { id = "7 8 9 \\n\\255", queue = "q 1 -1 ", delay = 1, payload = "\\0 \\n1" }
            lapse.put { id = "none", queue = "q 1 -1 ", delay = 1.1 }
        """)
        nginx.reload()
        eventually(lambda: len(nginx.fired()) == 2, "two fired")
        assert [bytes.fromhex(line) for line in nginx.fired()] == [
            b"7 8 9 \n\xff|\0 \n1", b"none|nil",
        ]  # fmt: skip


def test_callbacks_of_their_own_end_with_their_worker(tmp_path: Path) -> None:
    with running(tmp_path, workers=1) as nginx:
        nginx.lua(LUA + """
            for i = 1, 7 do
                lapse.schedule("c" .. i, 1, function(id) fired(id) end)
            end
            lapse.put { id = "named", queue = "fired", delay = 1 }
        """)
        gone(nginx.reload())
        eventually(lambda: nginx.fired() == ["named"], "the other one fires")
        assert "lapse: 7 pending orders end with this worker" in nginx.log()


def test_without_a_dictionary_none_is_handed_over(tmp_path: Path) -> None:
    start = START.replace('{ dict = "lapse" }', "()")
    with running(tmp_path, workers=1, init_worker=start) as nginx:
        nginx.lua(HOUR)
        gone(nginx.reload())
        assert "lapse: 1000 pending orders end with this worker" in nginx.log()
        assert pending(nginx, 0) == 0


def test_a_dictionary_that_is_full_is_told(tmp_path: Path) -> None:
    parts = {"workers": 1, "http": "lua_shared_dict small 64k;",
             "init_worker": START.replace('"lapse" }', '"small" }')}  # fmt: skip
    with running(tmp_path, **parts) as nginx:
        nginx.lua(HOUR)
        gone(nginx.reload())
        assert 'no memory: give lua_shared_dict "small" more room' in nginx.log()
        eventually(lambda: nginx.lua('return ngx.shared.small:llen "lapse:orders"') == "0", "taken")
        adopted = pending(nginx, 0)
        assert f"lapse: {1000 - adopted} pending orders end with this worker" in nginx.log()
        assert 0 < adopted < 1000


def test_what_others_put_into_the_list_does_no_harm(tmp_path: Path) -> None:
    with running(tmp_path, workers=1) as nginx:
        nginx.lua(LUA + """
            ngx.shared.lapse:rpush("lapse:orders", "nonsense")
            lapse.put { id = "OID1", queue = "fired", delay = 0.5 }
        """)
        eventually(lambda: "no order, in the dictionary lapse: nonsense" in nginx.log(), "told")
        gone(nginx.reload())
        eventually(lambda: nginx.fired() == ["OID1"], "it fires")


def test_the_same_id_from_two_workers_fires_twice(tmp_path: Path) -> None:
    """The one worker that is left takes the second order when the first has ended."""
    with running(tmp_path) as nginx:
        for worker in (0, 1):
            nginx.lua(LUA + 'lapse.put { id = "OID1", queue = "fired", delay = 2 }', worker)
        nginx.parts["workers"] = 1
        nginx.write_conf()
        old = nginx.workers()
        os.kill(nginx.master, signal.SIGHUP)
        gone(old)
        eventually(lambda: nginx.fired() == ["OID1", "OID1"], "both fired")


def test_answers_in_a_worker_that_is_to_end(tmp_path: Path) -> None:
    with running(tmp_path, workers=1) as nginx:
        nginx.lua(LUA + """
            lapse.schedule("cancelled", 0.2, function(id) fired(id) end)
            lapse.schedule("runs", 0, function(id)
                fired "began"
                while not ngx.worker.exiting() do
                    ngx.sleep(0.01) -- sleeps: until the reload
                end
                ngx.sleep(0.3) -- sleeps: until the watchdog was there
                local answer, _, code = lapse.schedule("more", 0, function() end)
                fired(tostring(answer), code, tostring(lapse.cancel "cancelled"))
            end)
        """)
        eventually(lambda: len(nginx.fired()) >= 1, "it began")
        gone(nginx.reload())
        assert nginx.fired()[-1].startswith("nil Closed ")


def test_term_of_one_worker_with_leave(tmp_path: Path) -> None:
    """Without exit_worker_by_lua* nothing of ours runs at TERM."""
    leave = 'exit_worker_by_lua_block { require("resty.lapse").leave() }'
    with running(tmp_path, workers=1, http=leave) as nginx:
        nginx.lua(HOUR)
        worker = nginx.workers()
        os.kill(worker[0], signal.SIGTERM)
        gone(worker)
        eventually(lambda: len(nginx.workers()) == 1, "another worker")
        eventually(lambda: pending(nginx, 0) == 1000, "all are adopted")


def test_a_worker_that_is_killed_is_replaced_by_one_that_works(tmp_path: Path) -> None:
    with running(tmp_path, workers=1) as nginx:
        nginx.lua(HOUR)
        worker = nginx.workers()
        os.kill(worker[0], signal.SIGKILL)
        gone(worker)
        eventually(lambda: len(nginx.workers()) == 1, "another worker")
        nginx.lua(LUA + 'lapse.put { id = "next", queue = "fired" }')
        eventually(lambda: nginx.fired() == ["next"], "it fires")
        nginx.stop()
        log = nginx.folder / "error.log"
        assert "exited on signal 9" in log.read_text()
        log.write_text("")  # As it should be here.
