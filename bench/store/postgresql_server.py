"""A private PostgreSQL for a measurement, which flushes its log to the disk."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

SCRIPT = Path(__file__).resolve().parents[2] / "tests" / "servers" / "postgresql"


def do(verb: str, folder: str, *words: str) -> str:
    return subprocess.run([SCRIPT, verb, folder, *words],
                          capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip


@contextmanager
def server(*settings: str) -> Iterator[str]:
    """Its URL; with these settings, "max_wal_size = '8GB'". At the end nothing is left of it."""
    with tempfile.TemporaryDirectory(prefix="lapse-bench-") as parent:
        folder = f"{parent}/server"
        url = do("start", folder, str(os.getpid()))
        try:
            with psycopg.connect(url, autocommit=True) as c:
                for setting in ("fsync = on", "full_page_writes = on", *settings):
                    c.execute(f"ALTER SYSTEM SET {setting}")
            do("stop", folder)
            do("start", folder)
            yield url
        finally:
            do("stop", folder)
