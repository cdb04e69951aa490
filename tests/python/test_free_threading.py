"""Without the GIL: lapse does not claim to be safe there, says so, and still builds."""

import random
import subprocess
import sys
import threading
from pathlib import Path

import lapse
import pytest
from pythons import pythons
from support import SANITIZED, TIER, in_threads, rounds, until

ROOT = Path(__file__).parents[2]


def test_p38_the_module_does_not_claim_what_nobody_has_tested():
    """Unmarked, so that a free-threaded interpreter turns the GIL on, and says it."""
    for path in (ROOT / "bindings" / "python").glob("*.[ch]"):
        assert "Py_mod_gil" not in path.read_text(), path
    text = (ROOT / "docs" / "python.md").read_text()
    assert "free-threaded" in text and "PYTHON_GIL" in text


@pytest.mark.skipif(TIER == "quick" or SANITIZED, reason="compiles")
def test_p38_it_builds_without_the_gil():
    """As for a free-threaded interpreter: with the objects and macros of its headers."""
    headers = {
        release: subprocess.run(
            [path, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for release, path in pythons().items()
        if tuple(int(part) for part in release.rstrip("t").split(".")[:2]) >= (3, 13)
    }
    if not headers:
        pytest.skip("no CPython 3.13 or newer is here")
    for release, folder in headers.items():
        done = subprocess.run(
            ["cc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             "-Wno-missing-field-initializers", "-DPy_GIL_DISABLED=1", "-DLAPSE_STATIC",
             f"-I{ROOT}/core/include", f"-I{ROOT}/tools", "-isystem", folder,
             *map(str, (ROOT / "bindings" / "python").glob("*.c"))],
            capture_output=True, text=True, check=False,
        )
        assert done.returncode == 0, f"{release}: {done.stderr}"


def test_p38_sixteen_threads_leave_one_answer_per_order():
    """Schedule, cancel, reschedule, look and drop, all at once: no order has two ends."""
    ends: dict[str, list[str]] = {}
    lock = threading.Lock()

    def ended(order, how):
        with lock:
            ends.setdefault(str(order), []).append(how)

    def work(number):
        draw = random.Random(number)
        for i in range(rounds(50, 1000, 20_000)):
            name = f"{number}/{i}"
            s.schedule(name, draw.random() * 0.01, lambda order: ended(order, "ran"))
            if draw.random() < 0.3:
                s.reschedule(name, draw.random() * 0.01)
            if draw.random() < 0.5 and s.cancel(name):
                ended(name, "cancelled")
            if i % 10 == 0:
                s.stats(), s.get(name)
                with lapse.Scheduler(workers=i % 20 // 10) as dropped:
                    dropped.schedule("o", 0, str)
                    dropped.schedule("p", 60, print)

    with lapse.Scheduler(workers=4) as s:
        in_threads(16, work)
        until(lambda: s.stats()["pending"] == s.stats()["running"] == 0, "the last of them")
    assert len(ends) == 16 * rounds(50, 1000, 20_000)
    assert all(len(how) == 1 for how in ends.values())


def test_p38_this_interpreter_says_what_it_does():
    is_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    assert is_enabled(), "lapse was imported, and the GIL is off: somebody forced it"
