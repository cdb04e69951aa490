# tiers: full
"""A durable store inside nginx: calls wait and the worker goes on; what was answered is kept."""

from __future__ import annotations

import grp
import http.client
import os
import pwd
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from durable import LUA, PATIENT, durable, in_background, locked, pending
from nginx import eventually

PUT = LUA + 'return tostring((lapse.put { id = "%s", queue = "%s", delay = %s }))'


def test_schedule_waits_until_durable_and_requests_are_served_meanwhile(tmp_path: Path) -> None:
    with durable(tmp_path, url=PATIENT) as nginx:
        with locked(tmp_path):
            answers = [
                in_background(nginx.lua, PUT % (f"o{worker}", "later", 3600), worker)
                for worker in (0, 1)
            ]
            for _ in range(50):
                for worker in (0, 1):
                    assert nginx.lua('return "served"', worker) == "served"
            assert not any(answer.done() for answer in answers)
            assert pending(tmp_path) == set()
        assert all(int(answer.result(60)) > 0 for answer in answers)
        assert pending(tmp_path) == {"o0", "o1"}


def test_every_call_waits_without_stopping_the_worker(tmp_path: Path) -> None:
    """Also those that only look, and those that callbacks make."""
    calls = {
        "schedule": 'lapse.schedule("new1", 3600, package.loaded.handler)',
        "schedule_at": 'lapse.schedule_at("new2", ngx.time() + 3600, package.loaded.handler)',
        "put": 'lapse.put { id = "new3", queue = "later", delay = 3600, payload = "p" }',
        "schedule_many": 'lapse.schedule_many { { id = "new4", queue = "later", delay = 3600 } }',
        "cancel": 'lapse.cancel "cancelled"',
        "reschedule": 'lapse.reschedule("moved", 7200)',
        "requeue": 'lapse.requeue("dead", 3600)',
        "purge": 'lapse.purge "purged"',
    }
    more = """
        package.loaded.handler = function() end
        lapse.handle("handled", package.loaded.handler)
        lapse.handle("rejects", function() return lapse.reject "hopeless" end)
    """
    with durable(tmp_path, more, url=PATIENT, workers=1) as nginx:
        nginx.lua(LUA + """
            assert(lapse.put { id = "cancelled", queue = "later", delay = 3600 })
            assert(lapse.put { id = "moved", queue = "later", delay = 3600 })
            assert(lapse.put { id = "dead", queue = "rejects" })
            assert(lapse.put { id = "purged", queue = "rejects" })
        """)
        eventually(lambda: nginx.lua(LUA + "return lapse.stats().dead") == "2", "two are dead")
        with locked(tmp_path):
            answers = {
                name: in_background(nginx.lua, LUA + f"return tostring(({call}))")
                for name, call in calls.items()
            }
            for _ in range(50):
                assert nginx.lua('return "served"') == "served"
            assert not any(answer.done() for answer in answers.values())
        for name, answer in answers.items():
            assert answer.result(60) not in ("nil", "false"), name
        assert pending(tmp_path) == {"new1", "new2", "new3", "new4", "moved", "dead"}


def test_answers_are_those_of_the_module(tmp_path: Path) -> None:
    with durable(tmp_path, 'lapse.handle("handled", fired)') as nginx:
        text = nginx.lua(LUA + """
            local told = {}
            local function tell(...)
                local line = { ... }
                for i = 1, select("#", ...) do
                    line[i] = tostring(line[i])
                end
                told[#told + 1] = table.concat(line, " ")
            end
            tell((lapse.put { id = "a", queue = "later", delay = 3600, payload = "\\0p" }))
            local _, _, code = lapse.put { id = "a", queue = "later", delay = 1 }
            tell(code)
            tell(lapse.get("a").state, #lapse.get("a").payload, lapse.get("a").queue)
            tell((lapse.put { id = "a", queue = "later", delay = 1800, replace = true }))
            tell((lapse.reschedule("a", 7200)), lapse.get("a").remaining > 3600)
            tell(lapse.reschedule("nobody's", 1))
            tell(lapse.cancel("a", 1))
            tell((lapse.cancel "a"))
            tell(lapse.cancel "a")
            tell(lapse.cancel "nobody's")
            tell(lapse.cancel(("x"):rep(300)))
            tell(select(3, lapse.get "nobody's"))
            tell(select(3, lapse.requeue "nobody's"))
            tell((lapse.purge "nobody's"), (lapse.purge(("x"):rep(300))))
            tell(select(3, lapse.schedule("b", 1, function() end)))
            local results, accepted = lapse.schedule_many {
                { id = "m1", queue = "later", delay = 3600 },
                { id = ("x"):rep(300), queue = "later" },
                { id = "m1", queue = "later", delay = 3600 },
                { id = "m2", queue = "later", delay = 3600 },
            }
            tell(type(results[1]), results[2], results[3], type(results[4]), accepted)
            local seen = {}
            for info in lapse.each "pending" do
                seen[#seen + 1] = info.id
            end
            table.sort(seen)
            tell(table.concat(seen, " "))
            tell(lapse.stats().pending, lapse.queue_stats("later").pending)
            tell(table.concat(lapse.queues(), ","))
            tell(lapse.metrics():match "lapse_orders{state=\\"pending\\"} %d+")
            return table.concat(told, "\\n")
        """)
        lines = text.splitlines()
        assert int(lines[0]) > 0
        assert int(lines[3]) > int(lines[0])
        assert lines[1:3] + lines[4:] == [
            "Exists", "pending 2 later", "true true", "false unknown nil", "false unknown nil", "true",
            "false done nil", "false unknown nil", "false unknown nil", "Unknown", "Unknown", "0 0",
            "Unsupported", "number BadId Exists number 2", "m1 m2", "2 2", lines[-2],
            'lapse_orders{state="pending"} 2',
        ]  # fmt: skip
        assert {"fired", "handled", "later"} <= set(lines[-2].split(","))


def test_wrong_arguments_raise_at_the_place_of_the_call(tmp_path: Path) -> None:
    with durable(tmp_path, workers=1) as nginx:
        for call, says in (
            ('lapse.put { id = 7, queue = "later" }', "lapse.put: an order id is a string"),
            ("lapse.cancel(7)", "lapse.cancel: an order id is a string"),
            ('lapse.reschedule("a", 0/0)', "lapse.reschedule: the delay"),
            ('lapse.schedule("a", 1, 7)', "lapse.schedule: the callback"),
            ('lapse.schedule_many { 7 }', "an order is a table"),
            ('lapse.each "lost"', "the state"),
        ):
            told = nginx.lua(LUA + f"return select(2, pcall(function()\nlocal _ = {call}\nend))")
            assert says in told and "test:3:" in told, told


def test_answered_is_on_the_disk_after_kill_9(tmp_path: Path) -> None:
    """Four clients place orders and pay half of them until nginx is killed."""
    placed: list[str] = []
    paying: list[str] = []
    paid: list[str] = []

    def shop(client: int) -> None:
        for i in range(100_000):
            name = f"c{client}-{i}"
            try:
                if nginx.request("/lua", PUT % (name, "later", 3600))[1].isdigit():
                    placed.append(name)
                if i % 2 == 0:
                    continue
                paying.append(name)
                if nginx.request("/lua", LUA + f'return tostring((lapse.cancel "{name}"))')[1] == "true":
                    paid.append(name)
            except (OSError, http.client.HTTPException):
                return

    with durable(tmp_path) as nginx:
        clients = [threading.Thread(target=shop, args=(n,)) for n in range(4)]
        for client in clients:
            client.start()
        eventually(lambda: len(paid) > 100, "a hundred are paid")
        workers = nginx.workers()
        for pid in [nginx.master, *workers]:
            os.kill(pid, signal.SIGKILL)
        for client in clients:
            client.join(60)
        assert nginx.process
        nginx.process.wait(60)
        nginx.process = None
        kept = pending(tmp_path)
        print(f"{len(placed)} placed, {len(paid)} of them paid")
        # What was being paid when nginx ended may be paid or not.
        assert set(placed) - set(paying) - kept == set(), "an answered order is lost"
        assert set(paid) & kept == set(), "a paid order would be closed"


def test_cancel_answers_from_another_worker(tmp_path: Path) -> None:
    more = """
        lapse.handle("sleeps", function(id)
            fired(id)
            while not ngx.shared.lapse:get "go on" do
                ngx.sleep(0.01) -- sleeps: until the test has looked
            end
        end)
    """
    with durable(tmp_path, more) as nginx:
        def cancel(name: str) -> str:
            return nginx.lua(LUA + f"""
                local cancelled, why = lapse.cancel "{name}"
                return tostring(cancelled) .. " " .. tostring(why)
            """, 1)  # fmt: skip

        nginx.lua(PUT % ("later", "later", 3600), 0)
        assert cancel("later") == "true nil"
        nginx.lua(PUT % ("runs", "sleeps", 0), 0)
        eventually(lambda: nginx.fired() == ["runs"], "it runs")
        assert cancel("runs") == "false running"
        nginx.lua('ngx.shared.lapse:set("go on", true)')
        eventually(lambda: cancel("runs") == "false done", "it is done")
        assert cancel("nobody's") == "false unknown"


def test_each_order_runs_once_in_one_of_the_workers(tmp_path: Path) -> None:
    more = 'lapse.handle("tells", function(id) fired(id, ngx.worker.pid()) end)'
    with durable(tmp_path, more) as nginx:
        nginx.lua(LUA + """
            local orders = {}
            for i = 1, 200 do
                orders[i] = { id = "o" .. i, queue = "tells", delay = i / 400 }
            end
            local _, accepted = lapse.schedule_many(orders)
            assert(accepted == 200)
        """, 0)
        eventually(lambda: len(nginx.fired()) >= 200, "all fired")
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
        names, pids = zip(*(line.split() for line in nginx.fired()), strict=True)
        assert Counter(names) == Counter(f"o{i}" for i in range(1, 201))
        assert set(map(int, pids)) <= set(nginx.workers())
        print(Counter(pids))


def test_a_busy_worker_lets_others_have_what_it_cannot_start(tmp_path: Path) -> None:
    """It has claimed many at once, and its callback keeps it busy until all others have run."""
    more = """
        lapse.handle("tells", function(id, order)
            ngx.shared.lapse:incr("ran", 1, 0)
            fired(id, order.attempt)
        end)
        lapse.handle("blocks", function(id, order)
            while ngx.shared.lapse:get "ran" < 500 do end
            fired(id, order.attempt)
        end)
    """
    with durable(tmp_path, more, url="&lease=6s") as nginx:
        nginx.lua(LUA + """
            local orders = {}
            for i = 1, 500 do
                local queue = i == 250 and "blocks" or "tells"
                orders[i] = { id = "o" .. i, queue = queue, delay = 0.2 + i / 1e6 }
            end
            orders[501] = { id = "last", queue = "tells", delay = 0.3 }
            assert(select(2, lapse.schedule_many(orders)) == 501)
        """)
        eventually(lambda: len(nginx.fired()) >= 501, "all have run")
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
        assert Counter(nginx.fired()) == Counter([*(f"o{i} 1" for i in range(1, 501)), "last 1"])


def test_verdicts_are_settled(tmp_path: Path) -> None:
    more = """
        lapse.handle("retries", function(id, order)
            fired(id, order.attempt)
            if order.attempt == 1 then return lapse.retry(0.01) end
            if order.attempt == 2 then error("not yet", 0) end
        end, { backoff = 0.01 })
        lapse.handle("rejects", function() return lapse.reject "hopeless" end)
        lapse.handle("exits", function(id, order)
            fired(id, order.attempt)
            if order.attempt == 1 then ngx.exit(0) end
        end, { backoff = 0.01 })
        lapse.handle("holds", function(id, order)
            fired(id, tostring(order:holds()), tostring(order:renew()))
            lapse.put { id = "next", queue = "fired" }
            fired(id, tostring(lapse.cancel(id)))
        end)
    """
    with durable(tmp_path, more, workers=1) as nginx:
        for queue in ("retries", "rejects", "exits", "holds"):
            nginx.lua(PUT % (queue, queue, 0))
        expected = {
            "retries 1", "retries 2", "retries 3", "exits 1", "exits 2", "holds true true",
            "holds false", "next",
        }  # fmt: skip
        eventually(lambda: set(nginx.fired()) == expected, "all have run")
        assert Counter(nginx.fired()) == Counter(expected)
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
        assert nginx.lua(LUA + """
            local dead = lapse.get "rejects"
            return dead.state .. " " .. dead.reason .. " " .. dead.error
        """) == "dead rejected hopeless"


DISALLOWED = ("set", "header_filter", "body_filter", "log", "balancer", "init_worker")
TRY = """
    local lapse, fired = require "resty.lapse", require "fired"
    local made, message, code = lapse.put { id = "%s", queue = "fired" }
    fired(tostring(made), code, message)
"""


def test_phases_that_cannot_wait_say_so(tmp_path: Path) -> None:
    tries = {phase: TRY.replace("%s", phase) for phase in DISALLOWED}
    once = "if not ngx.ctx.done then ngx.ctx.done = true " + tries["body_filter"] + " end"
    http = f"""
        upstream balanced {{
            server 0.0.0.1;
            balancer_by_lua_block {{
                {tries["balancer"]}
                assert(require("ngx.balancer").set_current_peer(ngx.var.server_addr,
                    tonumber(ngx.var.server_port)))
            }}
        }}
    """
    server = f"""
        location = /phases {{
            set_by_lua_block $nothing {{ {tries["set"]} return "" }}
            content_by_lua_block {{ ngx.say "content" }}
            header_filter_by_lua_block {{ {tries["header_filter"]} }}
            body_filter_by_lua_block {{ {once} }}
            log_by_lua_block {{ {tries["log"]} }}
        }}
        location = /proxied {{ proxy_pass http://balanced/phases; }}
    """
    with durable(tmp_path, tries["init_worker"], workers=1, http=http, server=server) as nginx:
        assert nginx.request("/proxied") == (200, "content\n")
        eventually(lambda: len(nginx.fired()) >= len(DISALLOWED), "all have tried")
        for phase in DISALLOWED:
            told = [line for line in nginx.fired() if f"the phase {phase} wait" in line]
            assert len(told) == 1, (phase, nginx.fired())
            assert told[0].startswith("nil CannotWait resty.lapse: put() waits for the store")
            assert "ngx.timer.at(0, function() ... end)" in told[0]
        assert pending(tmp_path) == set()


def test_phases_that_can_wait(tmp_path: Path) -> None:
    phases = ("rewrite", "access", "content", "timer")
    tries = {phase: TRY.replace("%s", phase).replace('"fired" }', '"later", delay = 60 }')
             for phase in phases}  # fmt: skip
    server = f"""
        location = /phases {{
            rewrite_by_lua_block {{ {tries["rewrite"]} }}
            access_by_lua_block {{ {tries["access"]} }}
            content_by_lua_block {{ {tries["content"]} ngx.say "content" }}
            log_by_lua_block {{ ngx.timer.at(0, function() {tries["timer"]} end) }}
        }}
    """
    with durable(tmp_path, workers=1, server=server) as nginx:
        assert nginx.request("/phases") == (200, "content\n")
        eventually(lambda: pending(tmp_path) == set(phases), "all have scheduled")


def nogroup() -> str:
    """The name of the group of nobody, which systems name differently."""
    return grp.getgrgid(pwd.getpwnam("nobody").pw_gid).gr_name


@pytest.mark.parametrize("user", ["own", "nobody"])
def test_the_socket_is_private(tmp_path: Path, user: str) -> None:
    """It has no name when the workers have begun, also when they are not root."""
    if user == "nobody" and os.geteuid() != 0:
        pytest.skip("only root starts workers of another user")
    places = tmp_path / "places"
    places.mkdir()
    for path in (tmp_path, *tmp_path.parents[:2], places):
        path.chmod(0o777)
    parts = {} if user == "own" else {"user": f"user {user} {nogroup()};"}
    with durable(tmp_path, main=f"env TMPDIR={places};", **parts) as nginx:
        nginx.lua(PUT % ("a", "fired", 0))
        eventually(lambda: nginx.fired() == ["a"], "it fires")
        assert list(places.iterdir()) == []
        assert Path("/proc/net/unix").read_text().count(f"{places}/lapse-") >= 2
