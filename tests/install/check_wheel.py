#!/usr/bin/env python3
"""What a wheel's extension module shows and asks for: check_wheel.py <wheel>.

It exports its entry only, so that two copies of the library in one process do not meet; it
uses the stable ABI only, if it says so; it needs no library but libc.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LIBC = {"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def names(module: Path, *options: str) -> set[str]:
    out = subprocess.run(
        ["nm", "-D", *options, module], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1].partition("@")[0] for line in out.splitlines()}


def needed(module: Path) -> set[str]:
    out = subprocess.run(
        ["readelf", "-d", module], capture_output=True, text=True, check=True
    ).stdout
    return {line.split("[")[1].rstrip("]") for line in out.splitlines() if "(NEEDED)" in line}


def stable_names() -> set[str] | None:
    """The names that 3.11 has in its stable ABI; its own tests know, if they are installed."""
    if sys.version_info[:2] != (3, 11):
        return None
    try:
        from test.test_stable_abi_ctypes import SYMBOL_NAMES
    except ImportError:
        return None
    return set(SYMBOL_NAMES)


def check(module: Path, has_stable_abi: bool) -> None:
    exported = names(module, "--defined-only")
    assert exported == {"PyInit__lapse"}, f"exports {sorted(exported)}"
    print("ok: exports its entry only")

    libraries = needed(module)
    clients = ("libsqlite3.", "libpq.", "libhiredis.", "libhiredis_ssl.", "libssl.", "librabbitmq.")
    stores = {name for name in libraries if name.startswith(clients)}
    assert libraries - stores <= LIBC, f"needs {sorted(libraries)}"
    print(f"ok: needs {', '.join(sorted(libraries))}")

    used = {name for name in names(module, "--undefined-only") if name.startswith(("Py", "_Py"))}
    stable = stable_names()
    if not has_stable_abi:
        print("skipped: this wheel is for one release")
    elif stable is None:
        print("skipped: this Python does not know the stable ABI of 3.11")
    else:
        assert used <= stable, f"not in the stable ABI: {sorted(used - stable)}"
        print(f"ok: {len(used)} names of Python, all of the stable ABI")


def main() -> None:
    wheel = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        (module,) = [name for name in archive.namelist() if name.endswith(".so")]
        has_stable_abi = "-abi3-" in wheel.name
        assert module.endswith(".abi3.so") == has_stable_abi, module
        check(Path(archive.extract(module, folder)), has_stable_abi)


if __name__ == "__main__":
    main()
