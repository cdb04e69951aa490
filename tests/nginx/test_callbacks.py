# tiers: full
"""Callbacks in a real nginx: they wait, fail, yield and exit without harm to the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nginx import START, Nginx, eventually, running

ERRORS = START.replace('{ dict = "lapse" }', """{
    keep = 60,
    on_error = function(order, err, trace)
        fired("error", order.id, type(err) == "string" and err or type(err), trace and "traced" or "-")
    end,
    on_dead = function(dead) fired("dead", dead.id, dead.reason, dead.error or "-") end,
}""")
LUA = 'local lapse, fired = require "resty.lapse", require "fired"\n'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with running(tmp_path_factory.mktemp("nginx"), workers=1, init_worker=ERRORS) as nginx:
        yield nginx


@pytest.fixture
def nginx(shared: Nginx) -> Iterator[Nginx]:
    """The same nginx for all of these, with nothing fired and nothing pending."""
    shared.fired_path.unlink(missing_ok=True)
    yield shared
    left = shared.lua(LUA + "local s = lapse.stats() return s.pending .. ' ' .. s.inflight")
    assert left == "0 0"


def wait_fired(nginx: Nginx, count: int) -> list[str]:
    eventually(lambda: len(nginx.fired()) >= count, f"{count} lines fired: {nginx.fired()}")
    return nginx.fired()


def test_runs_what_is_due_and_not_what_was_cancelled(nginx: Nginx) -> None:
    answers = nginx.lua(LUA + """
        local function hit(id, order)
            fired(id, order.payload or "-", ngx.get_phase(), order.attempt, order.late >= 0)
        end
        local g = lapse.schedule("a", 0.05, function(id, o)
            fired(id, o.payload or "-", ngx.get_phase(), o.attempt, tostring(o.late >= 0))
        end)
        lapse.put { id = "b", delay = 0.03, payload = "x\\0y", callback = function(id, o)
            fired(id, #o.payload)
        end }
        lapse.schedule("c", 0.01, hit)
        local told = { tostring(g > 0), select(3, lapse.schedule("a", 1, hit)) }
        told[#told + 1] = tostring(lapse.cancel "c")
        for _, answer in ipairs { tostring((lapse.cancel "c")), select(2, lapse.cancel "c"),
                                  select(2, lapse.cancel "nothing") } do
            told[#told + 1] = answer
        end
        told[#told + 1] = tostring(lapse.reschedule("a", 0.04))
        told[#told + 1] = lapse.get("a").state
        return table.concat(told, " ")
    """)
    assert answers == "true Exists true false done unknown true pending"
    assert wait_fired(nginx, 2) == ["b 3", "a - timer 1 true"]


def test_never_early(nginx: Nginx) -> None:
    nginx.lua(LUA + """
        for i = 1, 300 do
            local due = lapse.now() + i / 1000
            lapse.schedule("e" .. i, i / 1000, function(id)
                fired(id, lapse.now() >= due and "on time" or "early")
            end)
        end
        local until_ = lapse.now() + 0.05
        while lapse.now() < until_ do end -- nginx's clock stands still meanwhile
    """)
    lines = wait_fired(nginx, 300)
    assert sorted(lines) == sorted(f"e{i} on time" for i in range(1, 301))


def test_a_callback_that_waits_does_not_hold_up_others(nginx: Nginx) -> None:
    nginx.lua(LUA + """
        local count = 0
        lapse.schedule("waits", 0, function(id)
            while count < 20 do
                ngx.sleep(0.01) -- sleeps: for the others
            end
            fired(id, "saw", count)
        end)
        for i = 1, 20 do
            lapse.schedule("o" .. i, 0.01 * i, function() count = count + 1 end)
        end
    """)
    assert wait_fired(nginx, 1) == ["waits saw 20"]


def test_a_callback_may_use_cosockets(nginx: Nginx) -> None:
    nginx.lua(LUA + f"""
        for i = 1, 10 do
            lapse.schedule("s" .. i, 0.01, function(id)
                local socket = ngx.socket.tcp()
                assert(socket:connect("127.0.0.1", {nginx.port}))
                assert(socket:send "GET /nothing HTTP/1.0\\r\\n\\r\\n")
                fired(id, (assert(socket:receive())))
                socket:close()
            end)
        end
    """)
    lines = wait_fired(nginx, 10)
    assert sorted(lines) == sorted(f"s{i} HTTP/1.1 404 Not Found" for i in range(1, 11))


def test_p_47_a_callback_that_yields_goes_on(nginx: Nginx) -> None:
    """nginx resumes a yield at the top; coroutines that a callback makes are its own."""
    nginx.lua(LUA + """
        lapse.schedule("yields", 0, function(id)
            coroutine.yield()
            fired(id, "went on")
        end)
        lapse.schedule("resumes", 0.01, function(id)
            local waiter = coroutine.create(function(a)
                ngx.sleep(0.001) -- sleeps: in a coroutine of the callback
                local b = coroutine.yield(a + 1)
                fired(id, a, b)
            end)
            local _, answer = coroutine.resume(waiter, 1)
            coroutine.resume(waiter, answer + 1)
        end)
        lapse.schedule("next", 0.02, function(id) fired(id) end)
    """)
    assert sorted(wait_fired(nginx, 3)) == ["next", "resumes 1 3", "yields went on"]


def test_p_47_a_callback_wakes_the_request_that_waits_for_it(nginx: Nginx) -> None:
    answer = nginx.lua(LUA + """
        local waiter = require("ngx.semaphore").new()
        local me = coroutine.running()
        lapse.schedule("resumes", 0, function()
            local fine, err = coroutine.resume(me) -- of another request: nginx refuses
            error(fine and "resumed" or err, 0)
        end)
        lapse.schedule("posts", 0.01, function(id)
            fired(id)
            waiter:post(1)
        end)
        assert(waiter:wait(30))
        return "woken"
    """)
    assert answer == "woken"
    lines = wait_fired(nginx, 2)
    assert lines[1] == "posts" and lines[0].startswith("error resumes "), lines
    assert "resumed" not in lines[0]


def test_p_28_errors_are_told_and_stop_nothing(nginx: Nginx) -> None:
    nginx.lua(LUA + """
        local odd = setmetatable({}, { __tostring = function() error "no text" end })
        lapse.schedule("string", 0.01, function() error("bad", 0) end)
        lapse.schedule("table", 0.02, function() error(odd) end)
        lapse.schedule("overflow", 0.03, function() local function f() return 1 + f() end f() end)
        lapse.schedule("forgot", 0.04, function() return lapse.retry end)
        lapse.schedule("fine", 0.05, function(id) fired(id) end)
    """)
    lines = wait_fired(nginx, 5)
    assert lines[0] == "error string bad traced"
    assert lines[1] == "error table table traced"
    assert lines[2].startswith("error overflow ") and "stack overflow" in lines[2]
    assert lines[3].startswith("error forgot the callback returned lapse.retry itself")
    assert lines[4:] == ["fine"]


def test_on_error_may_wait_and_may_fail(tmp_path: Path) -> None:
    start = START.replace('{ dict = "lapse" }', """{
        on_error = function(order, err)
            ngx.sleep(0.01) -- sleeps: a hook that waits
            fired("told", order.id, err)
            error "and fails"
        end,
    }""")
    with running(tmp_path, workers=1, init_worker=start) as nginx:
        nginx.lua(LUA + """
            for i = 1, 3 do
                lapse.schedule("e" .. i, i / 100, function(id) error("bad", 0) end)
            end
        """)
        assert sorted(wait_fired(nginx, 3)) == ["told e1 bad", "told e2 bad", "told e3 bad"]
        eventually(lambda: nginx.log().count("on_error failed for order") == 3, "told in the log")


def test_without_on_error_the_error_log_has_it(tmp_path: Path) -> None:
    with running(tmp_path, workers=1) as nginx:
        nginx.lua(LUA + 'lapse.schedule("OID1", 0, function() error "no gateway" end)')
        eventually(lambda: "no gateway" in nginx.log(), "the error in the log")
        line = next(line for line in nginx.log().splitlines() if "no gateway" in line)
        assert "[error]" in line and 'lapse: order "OID1" failed: test:2: no gateway' in line
        assert "stack traceback" in nginx.log()
        nginx.lua(LUA + """
            lapse.on_error(function(order) fired("hook", order.id) end)
            lapse.schedule("OID2", 0, function() error "again" end)
        """)
        assert wait_fired(nginx, 1) == ["hook OID2"]


def test_verdicts_and_policies(nginx: Nginx) -> None:
    nginx.lua(LUA + """
        lapse.handle("refund", function(id, order)
            fired(id, "attempt", order.attempt)
            if order.attempt < 3 then error("gateway down", 0) end
        end, { backoff = 0.02, jitter_percent = -1 })
        lapse.put { id = "r", queue = "refund" }
        lapse.handle("hopeless", function() error(lapse.reject "no account") end)
        lapse.put { id = "h", queue = "hopeless", delay = 1 }
        local tries = 0
        lapse.schedule("own", 1.5, function(id)
            tries = tries + 1
            fired(id, tries)
            return tries < 2 and lapse.retry(0.01) or nil
        end)
    """)
    assert wait_fired(nginx, 8) == [
        "r attempt 1", "error r gateway down traced", "r attempt 2",
        "error r gateway down traced", "r attempt 3",
        "dead h rejected no account", "own 1", "own 2",
    ]  # fmt: skip
    assert nginx.lua(LUA + """
        local requeued = lapse.requeue("h", 60)
        return lapse.get("h").state .. tostring(lapse.cancel "h") .. tostring(requeued > 0)
    """) == "pendingtruetrue"


def test_a_cancel_while_it_runs_ends_the_attempts(nginx: Nginx) -> None:
    nginx.lua(LUA + """
        lapse.handle("slow", function(id, order)
            fired(id, "runs", order.attempt)
            while lapse.get(id).state == "running" and not package.loaded.go_on do
                ngx.sleep(0.01) -- sleeps: until the request has cancelled it
            end
            error("failed", 0)
        end, { backoff = 0.01 })
        lapse.put { id = "s", queue = "slow" }
    """)
    wait_fired(nginx, 1)
    assert nginx.lua(LUA + """
        local answer, why = lapse.cancel "s"
        package.loaded.go_on = true
        return tostring(answer) .. " " .. why
    """) == "false running"
    eventually(lambda: nginx.lua(LUA + 'return lapse.get("s").state') == "done", "it ended")
    assert [line for line in nginx.fired() if "runs" in line] == ["s runs 1"]


@pytest.mark.parametrize("inline", ["false", "true"])
def test_exit_in_a_callback_does_not_stop_the_others(nginx: Nginx, inline: str) -> None:
    nginx.lua(LUA + f"""
        lapse.handle("exits{inline}", function(id, order)
            fired(id, "attempt", order.attempt)
            ngx.exit(ngx.ERROR)
        end, {{ inline = {inline}, attempts = 2, backoff = 0.01 }})
        lapse.put {{ id = "x", queue = "exits{inline}", delay = 0.01 }}
        for i = 1, 100 do
            lapse.schedule("o" .. i, i / 1000, function(id) fired(id) end)
        end
    """)
    wait_fired(nginx, 105)
    lines = nginx.fired()
    assert sorted(n for n in lines if n[0] == "o") == sorted(f"o{i}" for i in range(1, 101))
    ended = "the callback ended its timer, as ngx.exit() does"
    assert [n for n in lines if n[0] != "o"] == [
        "x attempt 1", f"error x {ended} -", "x attempt 2", f"error x {ended} -",
        f"dead x failed {ended}",
    ]  # fmt: skip
    assert nginx.lua(LUA + "return lapse.purge 'x'") == "1"


def test_callbacks_do_not_share_a_context(nginx: Nginx) -> None:
    nginx.lua(LUA + """
        for i = 1, 10 do
            lapse.schedule("c" .. i, 0.01, function(id)
                fired(id, tostring(ngx.ctx.seen))
                ngx.ctx.seen = true
            end)
        end
    """)
    assert sorted(wait_fired(nginx, 10)) == sorted(f"c{i} nil" for i in range(1, 11))


def test_inline_callbacks_share_timers(nginx: Nginx) -> None:
    before = int(nginx.lua(LUA + """
        lapse.handle("tiny", function(id) fired(id) end, { inline = true })
        local launched = lapse.stats().launched
        for i = 1, 1000 do
            lapse.put { id = "t" .. i, queue = "tiny", delay = 0.05 }
        end
        return launched
    """))
    lines = wait_fired(nginx, 1000)
    assert lines == [f"t{i}" for i in range(1, 1001)]
    launched = int(nginx.lua(LUA + "return lapse.stats().launched")) - before
    assert launched < 100
    # One that waits all the same holds up the others for a moment, not for as long as it waits.
    nginx.lua(LUA + """
        local others = 0
        lapse.handle("waits", function(id)
            while others < 10 do
                ngx.sleep(0.01) -- sleeps: for the others
            end
            fired(id, "saw", others)
        end, { inline = true })
        lapse.handle("others", function() others = others + 1 end, { inline = true })
        lapse.put { id = "w", queue = "waits" }
        for i = 1, 10 do
            lapse.put { id = "i" .. i, queue = "others", delay = 0.01 }
        end
    """)
    assert wait_fired(nginx, 1001)[1000] == "w saw 10"


def test_a_callback_beyond_its_run_limit_has_lost_its_order(nginx: Nginx) -> None:
    nginx.lua(LUA + """
        lapse.handle("long", function(id, order)
            fired(id, "attempt", order.attempt)
            if order.attempt == 1 then
                while order:holds() do
                    ngx.sleep(0.01) -- sleeps: longer than its run limit
                end
            end
        end, { run_limit = 0.1, backoff = 0.01 })
        lapse.put { id = "l", queue = "long" }
    """)
    lines = wait_fired(nginx, 3)
    assert sorted(lines) == [
        "error l the callback ran longer than its run_limit: it has lost the order -",
        "l attempt 1", "l attempt 2",
    ]  # fmt: skip


def test_a_stuck_callback_is_named_though_no_other_can_start(tmp_path: Path) -> None:
    start = START.replace('{ dict = "lapse" }', "{ max_inflight = 1, stuck_after = 0.1 }")
    with running(tmp_path, workers=1, init_worker=start) as nginx:
        nginx.lua(LUA + """
            lapse.schedule("OID1", 0, function(id)
                ngx.sleep(1) -- sleeps: the callback is stuck
                fired(id)
            end)
            lapse.schedule("OID2", 0.01, function(id) fired(id) end)
        """)
        assert wait_fired(nginx, 2) == ["OID1", "OID2"]
        log = nginx.log()
        assert "[warn]" in log and 'the callback of order "OID1" is still running after 0.' in log


def test_pause_resume_and_schedule_many(nginx: Nginx) -> None:
    assert nginx.lua(LUA + """
        lapse.pause "fired"
        local results, accepted = lapse.schedule_many {
            { id = "m1", queue = "fired" }, { id = "m2", queue = "fired", delay = 0.01 },
            { id = "", queue = "fired" }, { id = "m1", queue = "fired" },
        }
        return accepted .. " " .. results[3] .. " " .. results[4]
    """) == "2 BadId Exists"
    states = nginx.lua(LUA + """
        ngx.sleep(0.1) -- sleeps: nothing may start meanwhile
        local states = {}
        for info in lapse.each "pending" do states[#states + 1] = info.id end
        table.sort(states)
        lapse.resume "fired"
        return table.concat(states, " ")
    """)
    assert states == "m1 m2"
    assert sorted(wait_fired(nginx, 2)) == ["m1", "m2"]


def test_an_instant_and_a_sooner_time_wake_the_driver(nginx: Nginx) -> None:
    nginx.lua(LUA + """
        lapse.schedule("later", 3600, function() end)
        lapse.schedule("sooner", 1800, function(id) fired(id) end)
        lapse.schedule_at("at", ngx.time(), function(id) fired(id) end)
        lapse.reschedule("sooner", 0.01)
    """)
    assert sorted(wait_fired(nginx, 2)) == ["at", "sooner"]
    assert nginx.lua(LUA + 'return tostring(lapse.cancel "later")') == "true"


def test_metrics_and_statistics(nginx: Nginx) -> None:
    assert "lapse_orders" in nginx.lua(LUA + "return lapse.metrics()")
    assert nginx.lua(LUA + """
        local s = lapse.stats()
        return tostring(s.inflight == 0 and s.drivers >= 1 and s.launched > 0 and s.adopted == 0)
            .. lapse.queue_stats("fired").queue .. select(3, lapse.queue_stats "none")
    """) == "truefiredUnknown"


@pytest.mark.parametrize(
    "call, says",
    [
        ('lapse.schedule(1, 2, print)', "lapse.schedule: an order id is a string, got a number"),
        ('lapse.schedule("a", "2", print)', "lapse.schedule: the delay is a number"),
        ('lapse.schedule("a", 0/0, print)', "lapse.schedule: the delay is a number of seconds up"),
        ('lapse.schedule("a", 1e16, print)', "lapse.schedule: the delay is a number of seconds up"),
        ('lapse.schedule("a", 2)', "lapse.schedule: the callback is a function, got nil"),
        ('lapse.put(1)', "lapse.put: an order is a table"),
        ('lapse.put { id = "a" }', "an order has a callback, or the queue of a handler"),
        ('lapse.put { id = "a", queue = "q", callback = print }', "an order has a callback or the"),
        ('lapse.schedule_many { { id = "a" } }', "an order has a callback, or the queue of"),
        ('lapse.handle("", print)', "a handler has a name"),
        ('lapse.handle("q", print, { inline = 1 })', "inline is a boolean, got number"),
        ('lapse.handle("q", print, { attempt = 1 })', "a policy has no field 'attempt'"),
        ('lapse.each "late"', "the state is 'pending'"),
        ('lapse.start()', "call it in init_worker_by_lua*, not in phase content"),
    ],
)  # fmt: skip
def test_misuse_is_told_at_the_place_of_the_call(nginx: Nginx, call: str, says: str) -> None:
    told = nginx.lua(LUA + f"""
        local fine, err = pcall(function()
            local answer = {call}
            return answer
        end)
        return tostring(fine) .. " " .. tostring(err)
    """)
    assert told.startswith("false test:4: ") and says in told, told
