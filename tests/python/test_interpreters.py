"""Several interpreters in one process: each has its own lapse, or is told that it cannot."""

import functools
import os
import shutil
import subprocess
import tempfile
import textwrap
from pathlib import Path

import pytest
from support import PATIENCE, every_python, rounds

HOST = Path(__file__).with_name("host.c")
CLEAN = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # for compilers


@functools.cache
def folder():
    return tempfile.TemporaryDirectory()


@functools.cache
def host_for(executable: str) -> str:
    """A C program that embeds this Python: tests/python/host.c."""
    base, version = subprocess.run(
        [executable, "-c", "import sys; print(sys.base_prefix, '%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, check=True,
    ).stdout.split()
    config = f"{base}/bin/python{version}-config"
    cc = os.environ.get("CC", "cc")
    if not os.path.exists(config) or not shutil.which(cc):
        pytest.skip(f"needs a C compiler and {config} (on Debian: python3-dev)")

    def flags(which):
        return subprocess.run(
            [config, which, "--embed"], capture_output=True, text=True, check=True, env=CLEAN
        ).stdout.split()

    out = f"{folder().name}/host-{len(os.listdir(folder().name))}"
    subprocess.run(
        [cc, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread",
         *(f.replace("-I", "-isystem", 1) for f in flags("--includes")), str(HOST),
         "-o", out, *flags("--ldflags")],
        env=CLEAN, check=True,
    )
    return out


def play(executable: str, *steps: tuple[str, int, str]) -> str:
    words = [w for what, n, text in steps for w in (what, str(n), textwrap.dedent(text))]
    done = subprocess.run(
        [host_for(executable), *words], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0 and done.stderr == "", (done.returncode, done.stderr)
    return done.stdout


SHOP = """
    import os, threading
    import lapse
    name = {name!r}
    def tell(what):
        os.write(1, f"{{what}} {{name}}\\n".encode())
    ran = threading.Event()
    lapse.schedule("soon", 0, lambda order: (tell("soon"), ran.set()))
    lapse.schedule("later", {later}, lambda order: tell("later"))
    own = lapse.Scheduler(workers=2)
    own.schedule("far", 3600, lambda order: tell("far"))
    assert ran.wait(20)
    assert len(own.orders()) == 1
"""

AGAIN = """
    until_later = threading.Event()
    lapse.schedule("after later", 0.6, lambda order: until_later.set())
    assert until_later.wait(20)
    assert own.cancel("far")
    own.close()
"""


@every_python
def test_p37_each_callback_sees_its_own_interpreter(executable):
    """One of three ends with orders pending: none of them runs then, the others go on."""
    for _ in range(rounds(1, 5, 50)):
        told = play(
            executable,
            ("run", 0, SHOP.format(name="main", later=0.5)),
            ("run", 1, SHOP.format(name="one", later=0.5)),
            ("run", 2, SHOP.format(name="two", later=0.5)),
            ("end", 1, ""),
            ("run", 0, "tell('one has ended;')"),
            ("run", 2, AGAIN),
            ("run", 0, AGAIN),
        ).splitlines()
        ended = told.index("one has ended; main")
        assert not [line for line in told[ended:] if line.endswith(" one")]
        expected = ["soon main", "soon one", "soon two", "later two", "later main"]
        assert sorted({*told} - {"later one", told[ended]}) == sorted(expected)


@every_python
def test_p37_requests_come_on_threads_of_the_host(executable):
    told = play(
        executable,
        ("run", 1, SHOP.format(name="one", later=3600)),
        ("run", 2, SHOP.format(name="two", later=3600)),
        ("thread", 1, """
            asked = threading.Event()
            lapse.schedule("asked", 0, lambda order: (tell("asked"), asked.set()))
            assert asked.wait(20) and lapse.cancel("later")
        """),
        ("thread", 2, "assert lapse.cancel('later'); lapse.close(); own.close(5)"),
        ("end", 1, ""),
        ("run", 2, "assert lapse.schedule('new', 3600, print) > 0"),
    )
    assert sorted(told.splitlines()) == ["asked one", "soon one", "soon two"]


@every_python
def test_p37_classes_and_errors_are_each_interpreters_own(executable):
    told = play(
        executable,
        *[("run", n, """
            import lapse
            seen = []
            with lapse.Scheduler(workers=0, on_error=lambda order, e: seen.append(type(e))) as s:
                s.schedule("o", 0, lambda order: s.schedule("", 0))
                while not seen:
                    s.process()
            assert seen == [lapse.BadId], seen
            print(id(lapse.Error), id(lapse.Order), id(lapse.Scheduler), flush=True)
        """) for n in range(3)],
    )
    assert len(set(told.split())) == 9


@every_python
def test_p37_many_one_after_the_other(executable):
    """The module is made and freed many times in one process."""
    told = play(
        executable,
        *[step for n in range(rounds(5, 20, 300)) for step in [
            ("run", 1, f"""
                import threading
                import lapse
                ran = threading.Event()
                lapse.schedule("now", 0, lambda order: ran.set())
                lapse.schedule("pending", 3600, print)
                kept = lapse.Scheduler()
                kept.schedule("pending", 3600, kept.cancel)
                kept.handle("q", kept.cancel)
                dropped = lapse.Scheduler(workers=0)
                assert ran.wait(20)
                print({n})
            """),
            ("end", 1, ""),
        ]],
    )
    assert [int(line) for line in told.split()] == list(range(rounds(5, 20, 300)))


@every_python
def test_p37_a_gil_of_its_own_is_refused_at_import(executable):
    new = subprocess.run(
        [executable, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"], check=False
    )
    if new.returncode:
        pytest.skip("no interpreter has a GIL of its own before 3.12")
    told = play(
        executable,
        ("run", 0, "import lapse; lapse.schedule('o', 3600, print)"),
        ("own", 1, """
            try:
                import lapse
            except ImportError as error:
                print(error, flush=True)
        """),
        ("run", 0, "assert lapse.cancel('o')"),
    )
    assert "lapse._lapse" in told and "subinterpreters" in told
