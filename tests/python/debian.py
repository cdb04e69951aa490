"""What scripts/packages installs for the tests' Python."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest


def of_debian(name: str) -> Any:
    """A module that scripts/packages installs for Debian's Python; another may not have it."""
    if sys.executable.startswith("/usr/bin/python3"):
        return importlib.import_module(name)
    return pytest.importorskip(name)
