"""`python -m lapse` and lapse._lapse._cli: the tool of tools/lapse inside the package."""

import json
import os
import signal
import subprocess
import sys

import pytest

import lapse
from lapse import _lapse
from lapse.__main__ import main


def tool(*words: str | bytes) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if k != "LAPSE_URL"}
    return subprocess.run(
        [sys.executable, "-m", "lapse", *words], capture_output=True, env=environment, timeout=100
    )


def test_version():
    assert tool("--version").stdout.decode() == f"lapse {lapse.__version__}\n"


def test_exit_codes():
    assert tool("check").returncode == 0
    assert tool("check", "--url", "redis://localhost").returncode == 1
    assert tool("list").returncode == 2
    assert tool("stats", "--url", "redis://localhost").returncode == 3


def test_words_are_passed_byte_for_byte():
    done = tool("stats", "--url", b"no\xffwhere")
    assert done.returncode == 2
    found = tool("check", "--json", "--url", b"no\xffwhere")
    assert json.loads(found.stdout)["store_hex"] == b"no\xffwhere".hex()


def test_demo():
    done = tool("demo", "--speed", "50", "--json")
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["placed"] == summary["paid"] + summary["closed"] == 8


def test_the_function_returns(capfd):
    # Again and again in one process: getopt begins anew.
    for _ in range(3):
        assert _lapse._cli([b"lapse", b"check", b"--json"]) == 0
        assert _lapse._cli((b"lapse", b"-x", b"check")) == 2
    out, err = capfd.readouterr()
    assert [json.loads(line)["healthy"] for line in out.splitlines()] == [True] * 3
    assert err.count("no option -x") == 3


@pytest.mark.parametrize("words", [None, 3, ["lapse"], [b"lapse", b"a\0b"], [b"lapse", 1]])
def test_what_is_no_list_of_bytes(words):
    with pytest.raises((TypeError, ValueError)):
        _lapse._cli(words)


def test_main_leaves_signals_to_the_system(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["lapse", "--version"])
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE)
    try:
        assert main() == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGPIPE, before[1])
    assert capfd.readouterr().out == f"lapse {lapse.__version__}\n"
