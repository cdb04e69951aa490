"""An nginx whose workers share a durable store, for the tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from nginx import Nginx, running

LUA = 'local lapse, fired = require "resty.lapse", require "fired"\n'
START = LUA + """
    assert(lapse.start {{ url = "{url}", {options} }})
    lapse.handle("fired", function(id) fired(id) end)
"""


def url_of(folder: Path, options: str = "") -> str:
    keep = "" if "keep=" in options else "keep=600s"
    return f"sqlite:///{folder}/orders.db?{keep}{options}".replace("?&", "?")


@contextmanager
def durable(
    folder: Path, more: str = "", url: str = "", options: str = "", **parts: object
) -> Iterator[Nginx]:
    """`more` is run in init_worker too; `url` and `options` are added to those of the start."""
    start = START.format(url=url_of(folder, url), options=options) + more
    with running(folder, init_worker=start, **parts) as nginx:
        for worker in range(int(str(nginx.parts["workers"]))):
            assert nginx.lua('return "ready"', worker) == "ready"
        yield nginx


PATIENT = "&busy=60s&lease=600s"  # a call waits for a lock for longer than any test keeps one


def database(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "orders.db", timeout=60, isolation_level=None)


def pending(folder: Path) -> set[str]:
    """The orders on the disk that have not ended, as another program sees them."""
    with closing(database(folder)) as connection:
        return {bytes(row[0]).decode() for row in connection.execute("SELECT id FROM lapse_order")}


@contextmanager
def locked(folder: Path, how: str = "IMMEDIATE") -> Iterator[None]:
    """Another process writes into the database, which is this one."""
    with closing(database(folder)) as connection:
        connection.execute(f"BEGIN {how}")
        yield
        connection.execute("ROLLBACK")


pool = ThreadPoolExecutor(32)


def in_background(call: Callable[..., str], *args: object) -> Future[str]:
    return pool.submit(call, *args)
