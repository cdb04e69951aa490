# tiers: full
"""nginx's limits: few timers, no connections. Nothing is dropped, and it goes on by itself."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

from durable import in_background
from nginx import START, Nginx, eventually, occupy, running

LUA = 'local lapse, fired = require "resty.lapse", require "fired"\n'
DROPPED = "lua_max_running_timers are not enough"


def each_once(nginx: Nginx, names: list[str]) -> None:
    """Every one of these fires, and none twice."""
    eventually(lambda: len(nginx.fired()) >= len(names), f"{len(names)} fired")
    assert Counter(nginx.fired()) == Counter(names)


def test_pending_orders_cost_two_timers(tmp_path: Path) -> None:
    with running(tmp_path, workers=1) as nginx:
        nginx.lua(LUA + """
            for i = 1, 10000 do
                lapse.put { id = "o" .. i, queue = "fired", delay = 3600 + i }
            end
        """)
        timers = 'return ngx.timer.pending_count() .. " " .. ngx.timer.running_count()'
        eventually(lambda: nginx.lua(timers) == "1 1", "two timers, one of which waits")


def test_fifty_sleepers_under_two_running_timers(tmp_path: Path) -> None:
    """One of them is the driver's; each callback finds the other one."""
    parts = {"workers": 1, "http": "lua_max_running_timers 2;"}
    with running(tmp_path, **parts) as nginx:
        nginx.lua(LUA + """
            for i = 1, 50 do
                lapse.schedule("s" .. i, 0.01, function(id)
                    ngx.sleep(0.02) -- sleeps: the callback's work
                    fired(id)
                end)
            end
        """)
        each_once(nginx, [f"s{i}" for i in range(1, 51)])
        lost = int(nginx.lua(LUA + "return lapse.stats().lost_launches"))
        assert DROPPED in nginx.log(), "the limit was never reached"
        assert lost > 0
        print(f"{lost} launches lost, {nginx.log().count(DROPPED)} alerts")


def test_other_timers_take_all_there_are(tmp_path: Path) -> None:
    """As long as a request's timers use up the limit nothing runs; then all of it."""
    parts = {"workers": 1, "http": "lua_max_running_timers 4;"}
    with running(tmp_path, **parts) as nginx:
        nginx.lua(LUA + """
            for i = 1, 3 do
                ngx.timer.at(0, function()
                    while not package.loaded.go_on do
                        ngx.sleep(0.01) -- sleeps: a timer that occupies its place
                    end
                end)
            end
            for i = 1, 20 do
                lapse.schedule("o" .. i, 0.05, function(id) fired(id) end)
            end
        """)
        eventually(
            lambda: int(nginx.lua(LUA + "return lapse.stats().lost_launches")) > 1, "two tries"
        )
        assert nginx.fired() == []
        nginx.lua("package.loaded.go_on = true")
        each_once(nginx, [f"o{i}" for i in range(1, 21)])


def test_a_shortage_is_forgotten_though_a_callback_sleeps_on(tmp_path: Path) -> None:
    """The callback that took the only place of a shortage does not keep the others from theirs."""
    with running(tmp_path, workers=1, http="lua_max_running_timers 4;") as nginx:
        nginx.lua(LUA + """
            for i = 1, 2 do
                ngx.timer.at(0, function()
                    while not package.loaded.go_on do
                        ngx.sleep(0.01) -- sleeps: a timer that occupies its place
                    end
                end)
            end
            local others = 0
            lapse.schedule("sleeps", 0.05, function(id)
                while others < 2 do
                    ngx.sleep(0.01) -- sleeps: for the others
                end
                fired(id)
            end)
            for i = 1, 2 do
                lapse.schedule("o" .. i, 0.06, function() others = others + 1 end)
            end
        """)
        eventually(
            lambda: int(nginx.lua(LUA + "return lapse.stats().lost_launches")) > 0, "a try"
        )
        nginx.lua("package.loaded.go_on = true")
        each_once(nginx, ["sleeps"])


def test_a_hook_that_ends_the_driver(tmp_path: Path) -> None:
    """It is called where an order is adopted, by the driver; another takes its place."""
    start = START.replace('{ dict = "lapse" }', """{
        dict = "lapse", max_pending = 5, overflow = "dead_letter_oldest",
        on_dead = function(dead)
            fired("dead", dead.id)
            ngx.exit(ngx.OK)
        end,
    }""")
    with running(tmp_path, init_worker=start) as nginx:
        for worker in (0, 1):
            nginx.lua(LUA + f"""
                for i = 1, 5 do
                    lapse.put {{ id = "w{worker}-" .. i, queue = "fired", delay = 3 }}
                end
            """, worker)  # fmt: skip
        nginx.parts["workers"] = 1
        nginx.write_conf()
        os.kill(nginx.master, signal.SIGHUP)
        eventually(lambda: len(nginx.fired()) == 10, "five are dead, five fire")
        assert sorted(line.split()[0] == "dead" for line in nginx.fired()) == [False] * 5 + [True] * 5
        eventually(lambda: int(nginx.lua(LUA + "return lapse.stats().drivers")) > 1, "another driver")


def test_no_more_than_max_inflight(tmp_path: Path) -> None:
    start = START.replace('{ dict = "lapse" }', "{ max_inflight = 5 }")
    with running(tmp_path, workers=1, init_worker=start) as nginx:
        nginx.lua(LUA + """
            local now, most = 0, 0
            for i = 1, 40 do
                lapse.schedule("o" .. i, 0, function(id)
                    now = now + 1
                    most = math.max(now, most)
                    ngx.sleep(0.005) -- sleeps: the callback's work
                    now = now - 1
                    fired(id, most)
                end)
            end
        """)
        eventually(lambda: len(nginx.fired()) == 40, "all of them")
        assert max(int(line.split()[1]) for line in nginx.fired()) == 5


def test_p_51_timers_and_connections_run_out(tmp_path: Path) -> None:
    """10 000 orders with 16 pending timers; for 5 s there is no connection, either.

    They are scheduled when no connection is left, by a request that keeps its own."""
    parts = {"workers": 1, "connections": 40, "http": "lua_max_pending_timers 16;"}
    with running(tmp_path, **parts) as nginx:
        request = in_background(nginx.lua, LUA + f"""
            local function wait_for(name)
                local file = io.open("{tmp_path}/" .. name)
                while not file do
                    ngx.sleep(0.01) -- sleeps: until the test has made it
                    file = io.open("{tmp_path}/" .. name)
                end
                file:close()
            end
            fired("waits")
            wait_for("no connections")
            for i = 1, 10000 do
                lapse.put {{ id = "o" .. i, queue = "fired", delay = 1 + i % 4000 / 1000 }}
            end
            fired("scheduled")
            wait_for("enough connections")
        """)
        eventually(lambda: nginx.fired() == ["waits"], "the request waits")
        held = occupy(nginx)
        (tmp_path / "no connections").touch()
        eventually(lambda: "scheduled" in nginx.fired(), "they are scheduled")
        time.sleep(5)  # sleeps: the shortage
        during = len(nginx.fired()) - 2
        for connection in held:
            connection.close()
        (tmp_path / "enough connections").touch()
        ended = time.monotonic()
        request.result(60)
        each_once(nginx, ["waits", "scheduled", *(f"o{i}" for i in range(1, 10001))])
        print(f"{during} ran in the shortage, the rest {time.monotonic() - ended:.2f} s after it")
        assert during < 10000, "there was no shortage"


def test_a_request_gets_its_turn_while_many_are_due(tmp_path: Path) -> None:
    """Callbacks that never wait, tens of thousands at once: requests are served in between."""
    server = "location = /ping { return 204; }"
    with running(tmp_path, workers=1, server=server) as nginx:
        seen = nginx.lua(LUA + f"""
            local ran, seen = 0, {{}}
            for i = 1, 60000 do
                lapse.schedule("o" .. i, 0.1, function() ran = ran + 1 end)
            end
            while ran < 60000 do
                local socket = ngx.socket.tcp()
                assert(socket:connect("127.0.0.1", {nginx.port}))
                assert(socket:send "GET /ping HTTP/1.0\\r\\n\\r\\n")
                assert(socket:receive())
                socket:close()
                seen[#seen + 1] = ran
            end
            return table.concat(seen, " ")
        """)
        counts = [int(count) for count in seen.split()]
        assert any(0 < count < 60000 for count in counts), f"none while they ran: {counts}"
