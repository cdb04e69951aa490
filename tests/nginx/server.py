"""What must hold inside nginx for every store that has a server, which is started for the test."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from durable import LUA
from nginx import LIMIT, Nginx, eventually, is_alive, running

SERVERS = Path(__file__).parent.parent / "servers"
START = LUA + """
    assert(lapse.start {{ url = "{url}" }})
    lapse.handle("fired", function(id, order) fired(id, order.payload) end)
"""
TRY = LUA + """
    local made, message, code = lapse.put { id = "%s", queue = "fired", payload = "p" }
    return made and "made" or code
"""


class Server:
    def __init__(self, store: str, folder: Path) -> None:
        self.script, self.folder = SERVERS / store, folder / "server"
        self.url = self.do("start", str(os.getpid()))

    def do(self, verb: str, *words: str) -> str:
        # Into a file: the server that is started keeps what it inherits open.
        with open(f"{self.folder}.out", "w+") as output:
            subprocess.run(
                [str(self.script), verb, str(self.folder), *words],
                stdout=output, timeout=2 * LIMIT, check=True,
            )  # fmt: skip
            output.seek(0)
            return output.read().strip()


@contextmanager
def shop(
    store: str,
    folder: Path,
    before: Callable[[Server], object] = lambda server: None,
    options: str = "",
    more: str = "",
) -> Iterator[tuple[Server, Nginx]]:
    """`before` is done to the server before nginx starts; `options` are those of the URL; `more` is run in
    init_worker too."""
    server = Server(store, folder)
    try:
        before(server)
        with running(folder, init_worker=START.format(url=server.url + options) + more) as nginx:
            for worker in (0, 1):
                assert nginx.lua('return "ready"', worker) == "ready"
            yield server, nginx
    finally:
        server.do("stop")


def check_orders(store: str, folder: Path, options: str = "") -> None:
    """Each order once, over a reload; cancelled from the worker that has not scheduled it."""
    with shop(store, folder, options=options) as (_, nginx):
        nginx.lua(LUA + """
            local orders = {}
            for i = 1, 100 do
                orders[i] = { id = "o" .. i, queue = "fired", payload = "p", delay = i / 50 }
            end
            assert(select(2, lapse.schedule_many(orders)) == 100)
            assert(lapse.put { id = "paid", queue = "fired", delay = 1 })
        """, 0)
        assert nginx.lua(LUA + 'return tostring(lapse.cancel "paid")', 1) == "true"
        old = nginx.reload()
        eventually(lambda: not any(map(is_alive, old)), "the old workers end")
        eventually(lambda: len(nginx.fired()) >= 100, "all have run")
        pending = LUA + "local s = lapse.stats() return s.pending + s.running"
        eventually(lambda: nginx.lua(pending) == "0", "all are settled")
        assert Counter(nginx.fired()) == Counter(f"o{i} p" for i in range(1, 101))


def is_refused(answer: str) -> bool:
    return answer in ("Offline", "Unsure", "Timeout")


def check_outage(store: str, folder: Path) -> None:
    """The server dies and comes back: answers meanwhile, and everything after it."""
    with shop(store, folder) as (server, nginx):
        assert nginx.lua(TRY % "before") == "made"
        server.do("kill")
        for worker in (0, 1):
            assert is_refused(nginx.lua(TRY % f"meanwhile{worker}", worker))
            assert nginx.lua('return "served"', worker) == "served"
        server.do("start", str(os.getpid()))
        for worker in (0, 1):
            eventually(lambda w=worker: nginx.lua(TRY % f"after{w}", w) == "made", "it is back")
        eventually(lambda: {"before p", "after0 p", "after1 p"} <= set(nginx.fired()), "all run")


def check_late_server(store: str, folder: Path) -> None:
    """The workers serve before their store does."""
    with shop(store, folder, lambda server: server.do("kill")) as (server, nginx):
        for worker in (0, 1):
            assert is_refused(nginx.lua(TRY % "early", worker))
        assert "is tried again" in nginx.log()
        server.do("start", str(os.getpid()))
        check_opens(nginx)


def check_opens(nginx: Nginx) -> None:
    for worker in (0, 1):
        eventually(lambda w=worker: nginx.lua(TRY % f"after{w}", w) == "made", "it opens")
    eventually(lambda: {"after0 p", "after1 p"} <= set(nginx.fired()), "the handlers run")


def check_refusing_server(
    store: str, folder: Path, refuse: Callable[[Server], object], accept: Callable[[Server], object]
) -> None:
    """A server that is there and refuses, as one does that is not set up yet, is tried again."""
    with shop(store, folder, refuse) as (server, nginx):
        for worker in (0, 1):
            assert nginx.lua(TRY % "early", worker) == "System"
        accept(server)
        check_opens(nginx)
