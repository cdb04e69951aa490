"""Servers are stopped after each test, and their packages are there."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hosts import serving

NEEDED = ("flask", "django", "gunicorn", "fastapi", "uvicorn", "uvloop")


@pytest.fixture
def serve(tmp_path: Path):
    yield from serving(tmp_path)


def pytest_configure() -> None:
    """Debian's Python must have them (scripts/packages test); another one may not."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing and sys.executable != "/usr/bin/python3":
        pytest.exit(f"not run: {sys.executable} has no {', '.join(missing)}", 0)
    assert not missing, f"scripts/packages test installs {', '.join(missing)}"
