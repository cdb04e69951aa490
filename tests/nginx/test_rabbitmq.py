# tiers: full
"""A store in RabbitMQ inside nginx, by itself and with a store that keeps its orders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import quote

from durable import LUA
from nginx import Nginx, eventually, is_alive
from server import TRY, check_late_server, check_orders, check_outage, check_refusing_server, shop

SOON = "?new=0s"  # its queues are used at once: no broker is killed here


def kept_in(folder: Path) -> str:
    return f"?ticket={quote(f'sqlite:///{folder}/orders.db?keep=1h', safe='')}"


def number(nginx: Nginx, what: str) -> int:
    return int(float(nginx.lua(f"{LUA} return lapse.stats().{what}")))


# -- By itself -----------------------------------------------------------------------------------


def test_each_order_runs_once(tmp_path: Path) -> None:
    """Over a reload, from either worker, with every byte of its payload."""
    with shop("rabbitmq", tmp_path, options=SOON) as (_, nginx):
        for worker in (0, 1):
            nginx.lua(LUA + f"""
                local orders = {{}}
                for i = {worker}, 99, 2 do
                    orders[#orders + 1] =
                        {{ id = "o" .. i, queue = "fired", payload = "p" .. i, delay = i / 50 }}
                end
                assert(select(2, lapse.schedule_many(orders)) == 50)
            """, worker)
        old = nginx.reload()
        eventually(lambda: not any(map(is_alive, old)), "the old workers end")
        eventually(lambda: len(nginx.fired()) >= 100, "all have run")
        eventually(lambda: number(nginx, "pending") + number(nginx, "running") == 0, "all are settled")
        assert Counter(nginx.fired()) == Counter(f"o{i} p{i}" for i in range(100))


HANDLERS = """
    lapse.handle("retried", function(id, order)
        fired(id, order.attempt)
        if order.attempt < 3 then return lapse.retry(0) end
    end, { attempts = 5 })
    lapse.handle("fails", function(id, order)
        fired(id, order.attempt)
        ngx.sleep(0.01) -- sleeps: a callback may
        error "no gateway"
    end, { attempts = 2, backoff = 0.01 })
    lapse.handle("rejects", function(id) return lapse.reject "no such order" end)
"""
DEAD = LUA + """
    local found = {}
    for info in lapse.each "dead" do
        found[#found + 1] = ("%s %s %d %s"):format(
            info.id, info.reason, info.attempt, tostring(info.error):match "no [%a ]+")
    end
    table.sort(found)
    return table.concat(found, ", ")
"""


def test_orders_are_retried_and_die_and_are_requeued(tmp_path: Path) -> None:
    with shop("rabbitmq", tmp_path, options=SOON, more=HANDLERS) as (_, nginx):
        for id, queue in (("a", "retried"), ("b", "fails"), ("c", "rejects")):
            nginx.lua(f'{LUA} assert(lapse.put {{ id = "{id}", queue = "{queue}" }})', 0)
        eventually(lambda: number(nginx, "dead") == 2, "both are given up")
        eventually(lambda: len(nginx.fired()) == 5, "all attempts")
        assert sorted(nginx.fired()) == ["a 1", "a 2", "a 3", "b 1", "b 2"]
        assert nginx.lua(DEAD, 1) == "b failed 2 no gateway, c rejected 1 no such order"
        assert nginx.lua(f'{LUA} return lapse.purge "c"', 1) == "1"
        nginx.lua(f'{LUA} assert(lapse.requeue "b")', 1)
        eventually(lambda: len(nginx.fired()) == 7, "two attempts more")
        assert sorted(nginx.fired())[3:] == ["b 1", "b 1", "b 2", "b 2"]
        eventually(lambda: nginx.lua(DEAD, 0) == "b failed 2 no gateway", "it is given up again")


def test_what_a_pipe_cannot_do_is_an_answer(tmp_path: Path) -> None:
    with shop("rabbitmq", tmp_path, options=SOON) as (_, nginx):
        assert nginx.lua(TRY % "o") == "made"
        for call in (
            'cancel "o"', 'get "o"', 'reschedule("o", 60)',
            'put { id = "o", queue = "fired", replace = true }',
        ):  # fmt: skip
            answer = nginx.lua(f"""{LUA}
                local none, message, code = lapse.{call}
                return ("%s %s %s"):format(tostring(none), code, message)
            """)
            assert answer.startswith("nil Unsupported ") and "ticket" in answer, (call, answer)


def test_the_server_dies_and_comes_back(tmp_path: Path) -> None:
    check_outage("rabbitmq", tmp_path)


def test_workers_serve_before_the_server_does(tmp_path: Path) -> None:
    check_late_server("rabbitmq", tmp_path)


def test_the_server_refuses_the_password_at_first(tmp_path: Path) -> None:
    check_refusing_server(
        "rabbitmq", tmp_path,
        refuse=lambda server: server.do("ctl", "change_password", "guest", "another"),
        accept=lambda server: server.do("ctl", "change_password", "guest", "guest"),
    )  # fmt: skip


# -- With a store that keeps the orders -------------------------------------------------------------


def test_each_order_that_is_kept_runs_once(tmp_path: Path) -> None:
    check_orders("rabbitmq", tmp_path, kept_in(tmp_path))


def test_every_answer_is_exact(tmp_path: Path) -> None:
    """What one worker has done the other knows."""
    with shop("rabbitmq", tmp_path, options=kept_in(tmp_path)) as (_, nginx):
        put = f'{LUA} local n, _, code = lapse.put {{ id = "o", queue = "fired", delay = 60 }}'
        assert nginx.lua(put + " return n and 1 or code", 0) == "1"
        assert nginx.lua(put + " return n and 1 or code", 1) == "Exists"
        state = LUA + 'local info = lapse.get "o" return info and info.state or "none"'
        listed = LUA + """
            local ids = {}
            for info in lapse.each "pending" do ids[#ids + 1] = info.id end
            return table.concat(ids, " ")
        """
        assert nginx.lua(state, 1) == "pending" and nginx.lua(listed, 1) == "o"
        assert nginx.lua(LUA + 'return tostring(lapse.reschedule("o", 0.1))', 1) == "true"
        eventually(lambda: nginx.fired() == ["o"], "it is woken")
        answer = LUA + 'local won, why = lapse.cancel "o" return tostring(won) .. " " .. why'
        eventually(lambda: nginx.lua(answer, 1) == "false done", "it is settled")
        assert nginx.lua(listed, 0) == ""


def test_without_the_broker_nothing_fails(tmp_path: Path) -> None:
    with shop("rabbitmq", tmp_path, options=kept_in(tmp_path)) as (server, nginx):
        server.do("kill")
        for worker in (0, 1):
            assert nginx.lua(TRY % f"o{worker}", worker) == "made"
        eventually(lambda: sorted(nginx.fired()) == ["o0 p", "o1 p"], "both run")
        eventually(lambda: "RabbitMQ wakes nobody" in nginx.log(), "the log says why")
