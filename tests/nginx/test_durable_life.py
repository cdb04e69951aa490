# tiers: full
"""A durable store inside nginx over reloads, kills and outages, and beside other programs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from durable import LUA, PATIENT, durable, in_background, locked, pending, url_of
from nginx import BUILD, ROOT, Nginx, eventually, is_alive, occupy, running

PUT = LUA + 'return tostring((lapse.put { id = "%s", queue = "%s", delay = %s }))'
CODE = LUA + """
    local made, message, code = lapse.%s
    return tostring(made) .. " " .. code .. " " .. message
"""


def gone(pids: list[int]) -> None:
    eventually(lambda: not any(map(is_alive, pids)), f"workers {pids} end")


def put_many(nginx: Nginx, count: int, queue: str, spread: float, worker: int | None = None) -> None:
    """`count` orders that are due within `spread` seconds."""
    nginx.lua(LUA + f"""
        local orders = {{}}
        for i = 1, {count} do
            orders[i] = {{ id = "o" .. i, queue = "{queue}", delay = i * {spread / count} }}
        end
        local _, accepted = lapse.schedule_many(orders)
        assert(accepted == {count})
    """, worker)  # fmt: skip


def names(count: int) -> Counter[str]:
    return Counter(f"o{i}" for i in range(1, count + 1))


# -- Reload and shutdown --


def test_each_order_of_two_reloads_fires_once(tmp_path: Path) -> None:
    with durable(tmp_path) as nginx:
        put_many(nginx, 300, "fired", 2.0)
        first = nginx.reload()
        time.sleep(0.5)  # sleeps: between two reloads
        second = nginx.reload()
        gone(first + second)
        eventually(lambda: len(nginx.fired()) >= 300, "300 fired")
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
        assert Counter(nginx.fired()) == names(300)


def test_old_workers_end_with_orders_pending_for_an_hour(tmp_path: Path) -> None:
    with durable(tmp_path) as nginx:
        put_many(nginx, 100, "fired", 360000.0)
        gone(nginx.reload())
        assert len(pending(tmp_path)) == 100
        assert nginx.fired() == []


def test_a_request_of_an_old_worker_can_still_schedule_and_cancel(tmp_path: Path) -> None:
    with durable(tmp_path) as nginx:
        nginx.lua(PUT % ("paid", "later", 3600))
        answer = in_background(nginx.lua, LUA + """
            ngx.shared.lapse:set("waits", true)
            while not ngx.worker.exiting() do
                ngx.sleep(0.01) -- sleeps: until the reload
            end
            ngx.sleep(1.5) -- sleeps: the watchdog has been there, and the driver has left
            local cancelled = lapse.cancel "paid"
            local made = lapse.put { id = "new", queue = "fired" }
            return tostring(cancelled) .. " " .. type(made)
        """)
        eventually(lambda: nginx.lua('return tostring(ngx.shared.lapse:get "waits")') == "true", "it waits")
        old = nginx.reload()
        assert answer.result(60) == "true number"
        gone(old)
        eventually(lambda: nginx.fired() == ["new"], "a new worker runs it")


def test_what_runs_at_quit_ends_and_is_settled(tmp_path: Path) -> None:
    more = """
        lapse.handle("sleeps", function(id)
            fired(id, "began")
            ngx.sleep(0.5) -- sleeps: over the signal
            fired(id, "ended")
        end)
    """
    with durable(tmp_path, more) as nginx:
        put_many(nginx, 10, "sleeps", 0.0)
        eventually(lambda: len(nginx.fired()) >= 4, "some have begun")
        os.kill(nginx.master, signal.SIGQUIT)
        assert nginx.process
        nginx.process.wait(60)
        nginx.process = None
        began = {line.split()[0] for line in nginx.fired() if line.endswith("began")}
        assert Counter(nginx.fired()) == Counter(f"{n} {what}" for n in began for what in ("began", "ended"))
        assert pending(tmp_path) == set(names(10)) - began
        nginx.start()
        eventually(lambda: len(nginx.fired()) >= 20, "the rest runs")
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
        assert len(nginx.fired()) == 20


def test_orders_of_a_killed_worker_go_to_another_after_their_lease(tmp_path: Path) -> None:
    more = """
        lapse.handle("sleeps", function(id, order)
            fired(id, order.attempt, ngx.worker.pid())
            while order.attempt == 1 do
                ngx.sleep(0.05) -- sleeps: until it is killed
            end
        end)
    """
    with durable(tmp_path, more, url="&lease=1s") as nginx:
        put_many(nginx, 6, "sleeps", 0.0)
        eventually(lambda: len(nginx.fired()) == 6, "all have begun")
        for pid in {int(line.split()[2]) for line in nginx.fired()}:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(nginx.fired()) >= 12, "all are delivered again")
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
        assert Counter(tuple(line.split()[:2]) for line in nginx.fired()) == Counter(
            (name, attempt) for name in names(6) for attempt in "12"
        )
        nginx.stop()
        log = nginx.folder / "error.log"
        assert "exited on signal 9" in log.read_text()
        log.write_text("")  # As it should be here.


# -- Outages --


def test_a_locked_store_is_an_answer_and_no_hang(tmp_path: Path) -> None:
    with durable(tmp_path, url="&busy=100ms", workers=1) as nginx:
        nginx.lua(PUT % ("old", "later", 3600))
        with locked(tmp_path):
            for call in (
                'put { id = "new", queue = "later", delay = 3600 }', 'cancel "old"',
                'reschedule("old", 1)',
            ):  # fmt: skip
                told = nginx.lua(CODE % call)
                assert told.startswith("nil Timeout ") and "orders.db" in told, told
            told = nginx.lua(LUA + """
                local results, accepted = lapse.schedule_many {
                    { id = "m", queue = "later", delay = 3600 },
                }
                return results[1] .. " " .. accepted
            """)
            assert told == "Timeout 0"
        assert pending(tmp_path) == {"old"}
        assert int(nginx.lua(PUT % ("new", "later", 3600))) > 0
        assert pending(tmp_path) == {"old", "new"}


@contextmanager
def started_in_vain(folder: Path, options: str) -> Iterator[tuple[Nginx, ExitStack]]:
    """An nginx that cannot open its store until the stack is closed."""
    with durable(folder) as nginx:  # It makes the file.
        nginx.lua(PUT % ("old", "tells", 0))
    with ExitStack() as lock:
        lock.enter_context(locked(folder, "EXCLUSIVE"))
        more = 'lapse.handle("tells", function(id) fired(id) end)'
        with durable(folder, more, url=options) as nginx:
            assert "is tried again" in nginx.log()
            assert int(float(nginx.lua(LUA + "return lapse.now()"))) > 0
            yield nginx, lock


def test_workers_serve_while_the_store_cannot_be_opened(tmp_path: Path) -> None:
    """Calls say why not; what falls due meanwhile is run by the handlers later."""
    with started_in_vain(tmp_path, "&busy=1500ms") as (nginx, lock):
        for worker in (0, 1):
            told = nginx.lua(CODE % 'put { id = "new", queue = "tells" }', worker)
            assert told.startswith("nil Timeout ") and "orders.db" in told, told
        assert nginx.fired() == []
        lock.close()
        eventually(lambda: nginx.lua(PUT % ("new", "tells", 0), 0) != "nil", "it opens")
        eventually(lambda: sorted(nginx.fired()) == ["new", "old"], "both run")


def test_calls_wait_for_a_store_that_opens_late(tmp_path: Path) -> None:
    with started_in_vain(tmp_path, PATIENT) as (nginx, lock):
        answers = [in_background(nginx.lua, PUT % (f"o{n}", "tells", 0), n % 2) for n in range(6)]
        for worker in (0, 1):
            assert nginx.lua('return "served"', worker) == "served"
        assert not any(answer.done() for answer in answers)
        lock.close()
        assert all(int(answer.result(60)) > 0 for answer in answers)
        eventually(lambda: len(nginx.fired()) == 7, "all run")
        assert Counter(nginx.fired()) == Counter(["old", *(f"o{n}" for n in range(6))])


def test_a_full_disk_is_tried_again(tmp_path: Path) -> None:
    """So is all that can end by itself."""
    path = tmp_path / "orders.db"
    path.symlink_to("/dev/full")
    with durable(tmp_path) as nginx:
        for worker in (0, 1):
            told = nginx.lua(CODE % 'put { id = "new", queue = "fired" }', worker)
            assert told.startswith("nil System ") and "its disk is full" in told, told
        path.unlink()
        for worker in (0, 1):
            eventually(lambda w=worker: nginx.lua(PUT % (f"o{w}", "fired", 0), w) != "nil", "it opens")
        eventually(lambda: sorted(nginx.fired()) == ["o0", "o1"], "both run")
        eventually(lambda: nginx.log().count("lapse: the store is open") == 2, "both say so")
        assert nginx.log().count("lapse: the store is not open yet") == 2, "once each"


def test_what_can_never_work_is_not_tried_again(tmp_path: Path) -> None:
    start = LUA + """
        local started, message, code = lapse.start { url = "%s" }
        fired(tostring(started), code, message)
    """
    for url, code in (("sqlite:///orders.db?nothing=1", "BadUrl"), ("nosuch://host", "BadUrl")):
        folder = tmp_path / url.split(":")[0]
        folder.mkdir()
        with running(folder, init_worker=start % url, workers=1) as nginx:
            eventually(lambda nginx=nginx: nginx.fired() != [], "start answers")
            assert nginx.fired()[0].startswith(f"nil {code} "), nginx.fired()


def test_many_orders_share_the_patience_of_one_call(tmp_path: Path) -> None:
    """They wait as long as one does: of three that are put one after the other two wait longer."""
    with durable(tmp_path, url="&busy=60s&lease=4s", workers=1) as nginx, locked(tmp_path):
        told = nginx.lua(LUA + """
            local orders, ended = {}, {}
            for i = 1, 20 do
                orders[i] = { id = "many" .. i, queue = "later", delay = 3600 }
            end
            local one = ngx.thread.spawn(function()
                for i = 1, 3 do
                    local _, _, code = lapse.put { id = "one" .. i, queue = "later", delay = 3600 }
                    ended[#ended + 1] = code
                end
            end)
            local results, accepted = lapse.schedule_many(orders)
            ended[#ended + 1] = "all"
            ngx.thread.wait(one)
            for _, code in ipairs(results) do
                assert(code == "Unsure", code)
            end
            return accepted .. " " .. table.concat(ended, " ")
        """)
    assert told in ("0 Unsure all Unsure Unsure", "0 all Unsure Unsure Unsure")


def test_a_store_that_is_gone_is_an_answer_and_no_hang(tmp_path: Path) -> None:
    with durable(tmp_path, workers=1) as nginx:
        nginx.lua(PUT % ("old", "later", 3600))
        path, away = tmp_path / "orders.db", tmp_path / "away.db"
        path.rename(away)
        told = nginx.lua(CODE % 'put { id = "new", queue = "later", delay = 3600 }')
        assert told.startswith("nil BadStore "), told
        away.rename(path)
        eventually(lambda: nginx.lua(PUT % ("new", "later", 3600)) != "nil", "it is back")
        assert pending(tmp_path) == {"old", "new"}


def test_callbacks_that_end_in_an_outage_are_settled_after_it(tmp_path: Path) -> None:
    more = """
        lapse.handle("waits", function(id, order)
            fired(id, order.attempt)
            while not ngx.shared.lapse:get "go on" do
                ngx.sleep(0.01) -- sleeps: until the store is locked
            end
            fired(id, "ended")
        end)
    """
    with durable(tmp_path, more, url="&busy=50ms") as nginx:
        put_many(nginx, 5, "waits", 0.0)
        eventually(lambda: len(nginx.fired()) == 5, "all have begun")
        with locked(tmp_path):
            nginx.lua('ngx.shared.lapse:set("go on", true)')
            eventually(lambda: len(nginx.fired()) == 10, "all have ended")
            assert set(names(5)) == pending(tmp_path)
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
        assert len(nginx.fired()) == 10


def test_what_a_request_asked_that_ended_meanwhile_is_done(tmp_path: Path) -> None:
    server = """
        location = /leaves {
            lua_check_client_abort on;
            content_by_lua_block {
                local lapse = require "resty.lapse"
                assert(ngx.on_abort(function()
                    ngx.shared.lapse:set("left", true)
                    ngx.exit(499)
                end))
                ngx.shared.lapse:set("asked", true)
                lapse.put { id = "left", queue = "later", delay = 3600 }
                ngx.shared.lapse:set("went on", true)
            }
        }
    """

    def flag(name: str) -> bool:
        return nginx.lua(f'return tostring(ngx.shared.lapse:get "{name}")') == "true"

    with durable(tmp_path, url=PATIENT, workers=1, server=server) as nginx:
        with locked(tmp_path):
            with socket.create_connection(("127.0.0.1", nginx.port), 60) as client:
                client.sendall(b"GET /leaves HTTP/1.0\r\n\r\n")
                eventually(lambda: flag("asked"), "it asks")
            eventually(lambda: flag("left"), "it leaves")
        eventually(lambda: pending(tmp_path) == {"left"}, "it is scheduled")
        assert nginx.lua(LUA + 'return tostring(lapse.cancel "left")') == "true"
        assert not flag("went on")


# -- nginx's limits --


def test_a_full_worker_still_answers(tmp_path: Path) -> None:
    """As many callbacks as may run; each of them asks the store, as do requests."""
    more = """
        lapse.handle("asks", function(id)
            assert(lapse.put { id = id .. "/next", queue = "later", delay = 3600 })
            while not ngx.shared.lapse:get "go on" do
                ngx.sleep(0.01) -- sleeps: until the test has asked
            end
            assert(lapse.cancel(id .. "/next"))
            fired(id)
        end)
    """
    with durable(tmp_path, more, options="max_inflight = 3", workers=1) as nginx:
        put_many(nginx, 20, "asks", 0.0)
        inflight = LUA + "return lapse.stats().inflight"
        eventually(lambda: nginx.lua(inflight) == "3", "three run")
        for i in range(20):
            assert int(nginx.lua(PUT % (f"r{i}", "later", 3600))) > 0
        assert nginx.lua(inflight) == "3"
        nginx.lua('ngx.shared.lapse:set("go on", true)')
        eventually(lambda: len(nginx.fired()) >= 20, "all have run")
        eventually(lambda: pending(tmp_path) == {f"r{i}" for i in range(20)}, "all are settled")
        assert Counter(nginx.fired()) == names(20)


def test_few_timers(tmp_path: Path) -> None:
    """One of three is the driver's; nothing is lost with the timers that nginx drops."""
    more = """
        lapse.handle("sleeps", function(id)
            ngx.sleep(0.02) -- sleeps: the callback's work
            fired(id)
        end)
    """
    with durable(tmp_path, more, workers=1, http="lua_max_running_timers 3;") as nginx:
        put_many(nginx, 40, "sleeps", 0.2)
        eventually(lambda: len(nginx.fired()) >= 40, "all have run")
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
        assert Counter(nginx.fired()) == names(40)


def test_connections_run_out(tmp_path: Path) -> None:
    """Nothing starts for a while, and nothing is lost by it."""
    with durable(tmp_path, workers=1, connections=40) as nginx:
        put_many(nginx, 60, "fired", 2.0)
        held = occupy(nginx)
        time.sleep(2)  # sleeps: the shortage
        for connection in held:
            connection.close()
        eventually(lambda: len(nginx.fired()) >= 60, "all have run")
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
        assert Counter(nginx.fired()) == names(60)
        assert int(nginx.lua(PUT % ("more", "fired", 0))) > 0
        eventually(lambda: len(nginx.fired()) == 61, "it goes on")


# -- Beside other programs --


def environment() -> dict[str, str]:
    more = {
        "PYTHONPATH": str(BUILD.resolve() / "python"),
        "LUA_PATH": f"{ROOT}/lua/?.lua;{ROOT}/lua/?/init.lua;;",
        "LUA_CPATH": f"{BUILD.resolve()}/lua/5.1/?.so;;",
    }
    if preload := os.environ.get("LAPSE_NGINX_PRELOAD"):
        more["LD_PRELOAD"] = preload
    return {**os.environ, **more}


def luajit() -> str:
    found = shutil.which("luajit") or shutil.which("lua5.1")
    assert found, "luajit not found; scripts/packages test installs it"
    return found


def python() -> str:
    if not (BUILD / "python" / "lapse").exists():
        pytest.skip("this build has no Python extension")
    return sys.executable


PROGRAMS = {
    "lua": (luajit, """
        local lapse = require "lapse"
        local s = assert(lapse.new "{url}")
        s:handle("for others", function(id, order)
            print(id, order.payload)
            s:stop()
        end)
        assert(s:put {{ id = "from outside", queue = "tells", payload = "7" }})
        s:run()
        s:close()
    """),
    "python": (python, """
import threading
import lapse
closed = threading.Event()
s = lapse.Scheduler("{url}")

@s.handler("for others")
def close_it(order):
    print(order, order.payload.decode(), sep="\\t")
    closed.set()

s.schedule("from outside", 0, queue="tells", payload=b"7")
assert closed.wait(60)
s.close(10)
"""),
}  # fmt: skip


@pytest.mark.parametrize("language", PROGRAMS)
def test_with_a_worker_in_another_language(tmp_path: Path, language: str) -> None:
    """It closes what nginx scheduled, and nginx closes what it scheduled."""
    find, source = PROGRAMS[language]
    more = 'lapse.handle("tells", function(id, order) fired(id, order.payload) end)'
    program = find()
    with durable(tmp_path, more) as nginx:
        nginx.lua(LUA + 'assert(lapse.put { id = "from nginx", queue = "for others", payload = "8" })')
        script = source.format(url=url_of(tmp_path))
        out = subprocess.run(
            [program, "-"], input=script, env=environment(), capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert out.returncode == 0, out.stderr
        assert out.stdout == "from nginx\t8\n"
        eventually(lambda: nginx.fired() == ["from outside 7"], "nginx closes its order")
        eventually(lambda: pending(tmp_path) == set(), "all are settled")
