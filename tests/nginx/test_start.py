# tiers: full
"""Where resty.lapse is started and called: every phase, one worker only, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from nginx import START, eventually, running

LUA = 'local lapse, fired = require "resty.lapse", require "fired"\n'
PAIR = """
    local lapse, fired = require "resty.lapse", require "fired"
    assert(lapse.schedule("%s", 0.01, function(id) fired(id) end))
    assert(lapse.schedule("paid in %s", 0.01, function(id) fired(id) end))
    assert(lapse.cancel "paid in %s")
"""


def pair(phase: str) -> str:
    """Schedule two orders and cancel one of them, in a phase."""
    return PAIR.replace("%s", phase)


def test_schedule_and_cancel_in_every_phase(tmp_path: Path) -> None:
    once = "if not ngx.ctx.done then ngx.ctx.done = true " + pair("body_filter") + " end"
    http = f"""
        upstream balanced {{
            server 0.0.0.1;
            balancer_by_lua_block {{
                {pair("balancer")}
                assert(require("ngx.balancer").set_current_peer(ngx.var.server_addr,
                    tonumber(ngx.var.server_port)))
            }}
        }}
    """
    server = f"""
        location = /phases {{
            set_by_lua_block $nothing {{ {pair("set")} return "" }}
            rewrite_by_lua_block {{ {pair("rewrite")} }}
            access_by_lua_block {{ {pair("access")} }}
            content_by_lua_block {{ {pair("content")} ngx.say "content" }}
            header_filter_by_lua_block {{ {pair("header_filter")} }}
            body_filter_by_lua_block {{ {once} }}
            log_by_lua_block {{ {pair("log")} }}
        }}
        location = /proxied {{ proxy_pass http://balanced/phases; }}
    """
    start = START + pair("init_worker") + "ngx.timer.at(0, function() " + pair("timer") + " end)"
    with running(tmp_path, workers=1, init_worker=start, http=http, server=server) as nginx:
        assert nginx.request("/proxied") == (200, "content\n")
        phases = """init_worker timer set rewrite access content header_filter body_filter log
            balancer""".split()
        eventually(lambda: len(nginx.fired()) >= len(phases), f"all fired: {nginx.fired()}")
        assert sorted(nginx.fired()) == sorted(phases)


def test_schedule_and_cancel_in_the_phases_of_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    assert openssl, "openssl not found; scripts/packages test installs it"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
         "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    http = f"""
        server {{
            listen unix:{tmp_path}/tls.sock ssl;
            ssl_certificate {tmp_path}/cert.pem;
            ssl_certificate_key {tmp_path}/key.pem;
            ssl_client_hello_by_lua_block {{ {pair("ssl_client_hello")} }}
            ssl_certificate_by_lua_block {{ {pair("ssl_certificate")} }}
            location / {{ return 200 "secret"; }}
        }}
    """
    with running(tmp_path, workers=1, http=http) as nginx:
        client = subprocess.run(
            [openssl, "s_client", "-quiet", "-unix", str(tmp_path / "tls.sock")],
            input=b"GET / HTTP/1.0\r\n\r\n", capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert b"secret" in client.stdout, client.stderr.decode() + nginx.log()
        eventually(lambda: len(nginx.fired()) == 2, f"both fired: {nginx.fired()}")
        assert sorted(nginx.fired()) == ["ssl_certificate", "ssl_client_hello"]


def test_exit_worker_may_look_but_not_schedule(tmp_path: Path) -> None:
    http = """exit_worker_by_lua_block {
        local lapse, fired = require "resty.lapse", require "fired"
        lapse.leave()
        fired(select(3, lapse.schedule("more", 0, print)), lapse.get("own").state,
            tostring(lapse.cancel "own"))
    }"""
    with running(tmp_path, workers=1, http=http) as nginx:
        nginx.lua(LUA + 'lapse.schedule("own", 3600, print)')
        nginx.stop()
        assert nginx.fired() == ["Closed pending true"]


def test_in_init_by_lua_it_is_refused_at_deployment(tmp_path: Path) -> None:
    for call, says in (
        ("start()", "start() in init_by_lua*: what is made there is the master's"),
        ('schedule("a", 1, print)', "schedule() in init_by_lua*"),
    ):
        http = f'init_by_lua_block {{ require("resty.lapse").{call} }}'
        with pytest.raises(AssertionError) as refused, running(tmp_path, http=http):
            pass
        assert "nginx does not start" in str(refused.value) and says in str(refused.value)


def test_requiring_it_in_init_by_lua_is_fine(tmp_path: Path) -> None:
    with running(tmp_path, workers=1, http='init_by_lua_block { require "resty.lapse" }') as nginx:
        nginx.lua(LUA + 'lapse.put { id = "a", queue = "fired" }')
        eventually(lambda: nginx.fired() == ["a"], "it fires")


def test_without_start_the_answer_says_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path, workers=1, init_worker="") as nginx:
        told = nginx.lua(LUA + 'return select(2, pcall(function() lapse.cancel "a" end))')
        assert told.startswith("test:2: resty.lapse is not started") and "init_worker_by_lua*" in told


def test_with_lua_code_cache_off_the_answer_says_so(tmp_path: Path) -> None:
    with running(tmp_path, workers=1, http="lua_code_cache off;") as nginx:
        told = nginx.lua(LUA + 'return select(2, pcall(function() lapse.cancel "a" end))')
        assert "With lua_code_cache off every request has a Lua state of its own" in told


@pytest.mark.parametrize(
    "options, says",
    [
        ("{ max_inflight = 0 }", "max_inflight is 1 to 100000, got 0"),
        ("{ max_inflight = '4' }", "max_inflight is a number, got string"),
        ("{ inline = 1 }", "inline is a boolean, got number"),
        ("{ clock = require('lapse').manual_clock() }", "cannot wait by a manual clock"),
        ("{ inflight = 4 }", "has no field 'inflight'"),
        ("{ dict = 'none' }", 'there is no lua_shared_dict "none"'),
        ("{ url = 'sqlite:///orders.db?tick=1ms' }", "tick"),
        ("{ url = 'nosuch://orders' }", "nosuch"),
        ("{ url = 'memory:?tick=soon' }", "tick"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, options: str, says: str) -> None:
    start = f'assert(require("resty.lapse").start({options}))'
    with running(tmp_path, workers=1, init_worker=start) as nginx:
        eventually(lambda: "init_worker_by_lua error" in nginx.log(), "the error")
        assert says in nginx.log()


def test_start_is_called_once(tmp_path: Path) -> None:
    start = START + 'fired(select(2, pcall(lapse.start)))'
    with running(tmp_path, workers=1, init_worker=start) as nginx:
        eventually(lambda: len(nginx.fired()) == 1, "the error")
        assert "resty.lapse.start: it was called before" in nginx.fired()[0]


def test_only_one_worker(tmp_path: Path) -> None:
    start = START.replace('"lapse" }', '"lapse", only_worker = 1 }') + """
        lapse.put { id = "at start", queue = "fired", delay = 0.01 }
    """
    with running(tmp_path, init_worker=start) as nginx:
        eventually(lambda: nginx.fired() == ["at start"], "it fires once")
        assert nginx.lua(LUA + """
            local answer, message, code = lapse.put { id = "a", queue = "fired" }
            return tostring(answer) .. ": " .. message .. ": " .. code
        """, 0) == "nil: orders are kept by the worker 1 only, and this is 0: Elsewhere"
        nginx.lua(LUA + 'lapse.put { id = "a", queue = "fired" }', 1)
        eventually(lambda: nginx.fired() == ["at start", "a"], "the other one keeps it")
        nginx.reload()
        eventually(lambda: nginx.fired() == ["at start", "a", "at start"], "the next one, too")


def test_a_child_that_is_forked_is_told(tmp_path: Path) -> None:
    """Its calls answer "Forked"; the worker's orders stay the worker's."""
    with running(tmp_path, workers=1) as nginx:
        nginx.lua(LUA + """
            local ffi = require "ffi"
            ffi.cdef [[
                int fork(void);
                void _exit(int status);
                int waitpid(int pid, int *status, int options);
            ]]
            lapse.put { id = "mine", queue = "fired", delay = 0.2 }
            local child = ffi.C.fork()
            if child == 0 then
                local answer, message, code = lapse.schedule("child's", 0, print)
                fired(tostring(answer), code, message)
                ffi.C._exit(0)
            end
            ffi.C.waitpid(child, nil, 0)
        """)
        eventually(lambda: len(nginx.fired()) == 2, "both lines")
        assert nginx.fired()[0].startswith("nil Forked the scheduler was opened before fork(): it is")
        assert nginx.fired()[1] == "mine"
