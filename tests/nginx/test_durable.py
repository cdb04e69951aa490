# tiers: full
"""Durable stores inside nginx: calls wait without stopping the worker, and nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nginx import BUILD, Nginx, eventually, is_alive, resident, running

LUA = 'local lapse, fired = require "resty.lapse", require "fired"\n'
START = LUA + """
    assert(lapse.start { url = "sqlite:///%s", keep = 600 })
    lapse.handle("fired", function(id) fired(id) end)
"""
PING = "location = /ping { return 204; }"


def url_of(folder: Path, options: str = "") -> str:
    return f"{folder}/orders.db{options}"


@contextmanager
def durable(folder: Path, more: str = "", options: str = "", **parts: object) -> Iterator[Nginx]:
    start = START % url_of(folder, options) + more
    with running(folder, init_worker=start, server=PING, **parts) as nginx:
        yield nginx


def rows(folder: Path) -> set[str]:
    """The ids on the disk, as another program sees them."""
    with sqlite3.connect(folder / "orders.db") as database:
        return {row[0] if isinstance(row[0], str) else row[0].decode()
                for row in database.execute("SELECT id FROM lapse_orders")}  # fmt: skip


def test_it_runs(tmp_path: Path) -> None:
    with durable(tmp_path) as nginx:
        print(nginx.lua(LUA + 'return tostring(lapse.put { id = "a", queue = "fired", delay = 0.1 })'))
        print(nginx.lua(LUA + 'return lapse.get("a").state'))
        eventually(lambda: nginx.fired() == ["a"], "it fires", 10)
        print(nginx.log())
