"""The PostgreSQL store from Python: threads, asyncio, psycopg, a pool before the server."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import lapse
import lapse.aio
import pytest
from postgresql_server import Pool, Server
from private_server import start_and_be_killed
from support import PATIENCE, of_debian, rounds, until

psycopg = of_debian("psycopg")

ROOT = Path(__file__).resolve().parents[2]


SERVER = Server


def connect(url: str, **options):
    """As the application is: with the store's schema in its search path."""
    base, schema = url.split("?schema=")
    return psycopg.connect(base, options=f"-c search_path={schema}", **options)


# -- Threads ---------------------------------------------------------------------------------


def test_orders_are_closed_by_workers(url):
    closed: list[str] = []
    enough = threading.Event()
    count = rounds(50, 500, 20000)
    with lapse.Scheduler(url, workers=4) as s:

        @s.handler("close")
        def close(order):
            closed.append(order.id)
            assert order.payload == order.id.encode() + b"\0\xff"
            assert order.attempt == 1
            assert order.late >= 0
            if len(closed) == count:
                enough.set()

        for i in range(count):
            s.schedule(f"o{i}", 0.01, queue="close", payload=f"o{i}".encode() + b"\0\xff")
        assert enough.wait(PATIENCE)
    assert sorted(closed) == sorted(f"o{i}" for i in range(count))


def test_four_answers_and_a_look(url):
    with lapse.Scheduler(url, keep=60) as s:
        s.schedule("o", 60, queue="q", payload=b"p")
        with pytest.raises(lapse.Exists):
            s.schedule("o", 60, queue="q")
        assert s.get("o").payload == b"p"
        assert s.cancel("o") is lapse.Fate.CANCELLED
        assert s.cancel("o") is lapse.Fate.DONE
        assert s.cancel("nobody") is lapse.Fate.UNKNOWN
        for name in ("caf\u00e9", "cafe\u0301", "x", "x ", "\udcff", "\x01"):
            s.schedule(name, 60, queue="q")
        assert {info.id for info in s.orders()} >= {"caf\u00e9", "cafe\u0301", "x", "x ", "\udcff", "\x01"}


def test_an_error_is_retried_and_then_dead(url):
    with lapse.Scheduler(url, workers=2, on_error=lambda *_: None) as s:

        @s.handler("close", attempts=2, backoff=0.01)
        def close(order):
            raise ValueError("no stock")

        s.schedule("o", 0, queue="close")
        until(lambda: s.stats()["dead"] == 1, "the dead letter")
        info = s.get("o")
        assert info.attempt == 2
        assert "no stock" in info.error


def test_a_killed_server_is_told_and_waited_for(server, url, caplog):
    ran = threading.Event()
    with lapse.Scheduler(url, workers=1) as s, caplog.at_level(logging.WARNING):
        s.handle("close", lambda order: ran.set())
        s.schedule("o", 1, queue="close")
        server.kill()
        with pytest.raises((lapse.Offline, lapse.Unsure)):
            s.schedule("p", 60, queue="close")
        server.start()
        assert ran.wait(PATIENCE)
        until(lambda: s.stats()["offline"] == 0, "the link")


def test_no_password_is_shown(server):
    with pytest.raises(lapse.Offline) as error:
        lapse.Scheduler("postgresql://shop:s3cret@127.0.0.1:1/shop")
    assert "s3cret" not in str(error.value)
    s = lapse.Scheduler(server.place().replace("postgres@", "postgres:s3cret@"))
    assert "s3cret" not in repr(s)
    s.close()


# -- asyncio ----------------------------------------------------------------------------------


def test_asyncio(url):
    async def main():
        closed = []
        done = asyncio.Event()
        async with lapse.aio.Scheduler(url) as s:

            @s.handler("close")
            async def close(order):
                await asyncio.sleep(0)  # sleeps: it may give way
                closed.append(order.id)
                if len(closed) == 20:
                    done.set()

            await asyncio.gather(*(s.schedule(f"o{i}", 0.01, queue="close") for i in range(20)))
            await s.schedule("paid", 60, queue="close")
            assert await s.cancel("paid") is lapse.Fate.CANCELLED
            await asyncio.wait_for(done.wait(), PATIENCE)
        assert sorted(closed) == sorted(f"o{i}" for i in range(20))

    asyncio.run(main())


# -- The application's own transaction -------------------------------------------------------------


def test_p64_psycopg_commits_order_and_timeout_together(url):
    ran: list[str] = []
    with lapse.Scheduler(url, workers=1) as s:
        s.handle("close", lambda order: ran.append(order.id))
        with connect(url) as app:
            app.execute("CREATE TABLE orders (id text)")
            app.commit()
            app.execute("INSERT INTO orders VALUES ('gone')")
            app.execute("SELECT lapse_schedule('gone', '0', 'close')")
            app.rollback()
            app.execute("INSERT INTO orders VALUES ('here')")
            (generation,) = app.execute(
                "SELECT lapse_schedule(%s, %s, 'close')", ["here", "0 s"]
            ).fetchone()
            assert generation > 0
            assert ran == []
            app.commit()
        until(lambda: ran == ["here"], "the order")
        with connect(url) as app:
            app.execute("SELECT lapse_schedule('later', '1 hour', 'close')")
            app.commit()
            with pytest.raises(psycopg.errors.UniqueViolation):
                app.execute("SELECT lapse_schedule('later', '1 hour', 'close')")
            app.rollback()
            assert app.execute("SELECT lapse_cancel('later')").fetchone() == ("cancelled",)
        assert ran == ["here"]


def run(source: str | Path, url: str) -> str:
    base, schema = url.split("?schema=")
    command = [sys.executable, "-W", "error"]
    command += [str(source)] if isinstance(source, Path) else ["-c", source]
    done = subprocess.run(
        command,
        env=os.environ | {"LAPSE_URL": base, "LAPSE_DEMO_SPEED": "4", "PGOPTIONS": ""},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "PostgreSQL: fsync is off" not in line]
    assert told == []
    return done.stdout


def test_the_example_tells_its_story(url):
    told = run(ROOT / "examples" / "python" / "postgresql_shop.py", url)
    assert "OID1   paid, timeout cancelled" in told
    assert told.splitlines()[-1] == "OID1 paid, OID3 closed, OID4 closed"


def test_the_guide_runs(url):
    page = (ROOT / "docs" / "postgresql.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        told = run(block, url)
        for expected in re.findall(r"# prints: (.*)$", block, re.MULTILINE):
            assert expected in told


# -- A pool --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_pgbouncer(server, url, mode):
    pool = Pool(server, mode)
    try:
        if mode == "transaction":
            with pytest.raises(lapse.Unsupported, match="transaction mode.*LISTEN"):
                lapse.Scheduler(pool.url(url))
            return
        ran = threading.Event()
        with lapse.Scheduler(pool.url(url), workers=1) as s:
            s.handle("close", lambda order: ran.set())
            s.schedule("o", 0, queue="close")
            assert ran.wait(PATIENCE)
    finally:
        pool.stop()


# -- The private server ----------------------------------------------------------------------------


def test_it_does_not_outlive_a_test_that_is_killed_with_its_group(tmp_path):
    start_and_be_killed("postgresql", tmp_path / "postgresql")
    data = Path((tmp_path / "postgresql" / "where").read_text().strip())
    until(lambda: not data.exists(), "the end of its data")
