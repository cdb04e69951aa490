# tiers: small
"""The tool without a store: help, usage errors, broken URLs, passwords, the manual page."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tool import DONE, NO, STORE, TOOL, USAGE, environment, lapse  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "lapse.1"
COMMANDS = """demo schedule cancel reschedule get list stats queues dead requeue purge check migrate
    watch metrics""".split()
OPTION = re.compile(r"^  (?:-(.),|   ) --([a-z-]+)", re.MULTILINE)


def test_version_is_the_library_s() -> None:
    parts = re.findall(
        r"^#define LAPSE_VERSION_\w+ +(\d+)$",
        (ROOT / "core/include/lapse.h").read_text(),
        re.MULTILINE,
    )
    for option in ("--version", "-V"):
        assert lapse(option).text == f"lapse {'.'.join(parts)}\n"


def test_help_names_every_command_and_nothing_else() -> None:
    ran = lapse("--help")
    assert (ran.code, ran.err) == (DONE, b"")
    listed = re.findall(r"^  ([a-z]+) +[A-Z]", ran.text, re.MULTILINE)
    assert listed == COMMANDS
    assert all(len(line) <= 100 for line in ran.text.splitlines())


def test_without_a_command_help_goes_to_standard_error() -> None:
    ran = lapse()
    assert (ran.code, ran.out, ran.err) == (USAGE, b"", lapse("--help").out)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str) -> None:
    ran = lapse(command, "--help")
    assert (ran.code, ran.err) == (DONE, b"")
    assert ran.text.startswith(f"Usage: lapse {command} [OPTION]...")
    assert {"json", "help"} <= {name for _, name in OPTION.findall(ran.text)}
    assert lapse(command, "-h").out == ran.out
    # It is help whatever else stands there, and no store is opened for it.
    assert lapse(command, "--help", url="nowhere:").out == ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], 'no command "nonsense"'),
        (["--nonsense"], "no option --nonsense"),
        (["-x", "stats"], "no option -x"),
        (["stats", "-x"], "no option -x"),
        (["stats", "--queue", "q"], "no option --queue"),
        (["stats", "--json=yes"], "no option --json=yes"),
        (["stats", "--url"], "--url wants an argument"),
        (["list", "-q"], "-q wants an argument"),
        (["cancel"], "wants ID..."),
        (["schedule"], "wants ID DELAY"),
        (["reschedule", "a"], "wants ID DELAY"),
        (["stats", "a"], '"a" is too much'),
        (["schedule", "a", "1s", "b"], '"b" is too much'),
        (["list", "--state", "ripe"], 'state "ripe" names no state'),
        (["list", "--state", "dead,"], "names no state"),
        (["list", "--limit", "0"], 'limit "0" is too small'),
        (["list", "--limit", "-1"], 'limit "-1" is no number'),
        (["list", "--limit", "9223372036854775808"], "is no number"),
        (["dead", "--reason", "none"], 'reason "none" names no reason'),
        (["cancel", "-g", "x", "a"], 'generation "x" is no number'),
        (["requeue", "--all", "--delay", "soon"], 'delay "soon" is no duration'),
        (["watch", "--interval", "0"], "shorter than 1ms"),
        (["demo", "--speed", "0"], 'speed "0" is too small'),
        (["schedule", "a", "--at", "2030-01-31"], "is no instant"),
        (["schedule", "a", "--payload-file", "/nonexistent", "1s"], "cannot be read: No such file"),
        (["schedule", "a", "--payload-file", "/", "1s"], "cannot be read: Is a directory"),
        (["demo", "--url", "memory:"], "no option --url"),
        (["list", "-s", "a\x1b[2Jb"], r"a\x1b[2Jb"),
    ],
)
def test_usage_errors(words: list[str], said: str) -> None:
    ran = lapse(*words)
    assert (ran.code, ran.out) == (USAGE, b"")
    assert said in ran.err.decode()
    assert b"\x1b" not in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["check", "postgresql://u:s3cret@host/db"],
        ["redis://u:s3cret@host/0"],
        ["check", "--stor=redis://u:s3cret@host/0"],
        ["stats", "--json=redis://u:s3cret@host/0"],
        ["get", "a", "-u", "postgresql://u:s3cret/pw@127.0.0.1:1/db"],
        ["get", "a", "-u", "postgresql://u:x@s3cret@127.0.0.1:1/db"],
        ["get", "a", "-u", "postgresql://u:s3cret"],
        ["get", "a", "-u", "postgresql://u:x?poll=s3cret@127.0.0.1:1/db"],
        ["get", "a", "-u", "postgresql://u:x?s3cret=1@127.0.0.1:1/db"],
    ],
)
def test_no_password_of_a_url_that_is_wrong_is_shown(words: list[str]) -> None:
    ran = lapse(*words)
    assert (ran.code, ran.out) == (USAGE, b"")
    assert b"s3cret" not in ran.err, ran.err


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("demo", "check")])
@pytest.mark.parametrize("url", [None, "", "memory:", "memory:?engine=heap"])
def test_memory_ends_with_the_command(command: str, url: str | None) -> None:
    words = {
        "schedule": ["a", "1s"],
        "cancel": ["a"],
        "reschedule": ["a", "1s"],
        "get": ["a"],
        "requeue": ["a"],
        "purge": ["a"],
    }
    ran = lapse(command, *words.get(command, []), url=url)
    assert (ran.code, ran.out) == (USAGE, b"")
    assert b"end with this command: name a store that keeps them" in ran.err


@pytest.mark.parametrize(
    ("url", "code", "error"),
    [
        ("nowhere:", USAGE, "BadUrl"),
        ("no scheme", USAGE, "BadUrl"),
        ("memory:?engine=steam", USAGE, "BadUrl"),
        ("memory:?tick=0", USAGE, "BadUrl"),
        ("redis://127.0.0.1:1", STORE, "Offline"),
        ("postgresql://127.0.0.1:1/shop", STORE, "Offline"),
        ("amqp://127.0.0.1:1", STORE, "Offline"),
    ],
)
def test_broken_urls(url: str, code: int, error: str) -> None:
    ran = lapse("stats", "--json", "--url", url)
    assert ran.code == code
    assert [o["error"] for o in ran.objects] == [error]
    text = lapse("stats", url=url)
    assert (text.code, text.out) == (code, b"")
    assert ran.objects[0]["detail"] in text.err.decode()
    # A store that does not open is not healthy; a URL that is none is a wrong command line.
    check = lapse("check", "--json", url=url)
    assert check.code == (USAGE if code == USAGE else NO)
    assert [(o["healthy"], o["failed"], o["error"]) for o in check.objects] == [
        (False, "open", error)
    ]


def test_url_on_the_command_line_wins() -> None:
    ran = lapse("--url", "memory:?engine=heap", "check", "-j", url="nowhere:")
    assert ran.objects[0]["store"] == "memory:?engine=heap"
    ran = lapse("check", "--url=memory:?engine=wheel", "-j", url="nowhere:")
    assert ran.objects[0]["store"] == "memory:?engine=wheel"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:s3cret@host/0", "redis://user:***@host/0"),
        ("redis://:s3cret@host", "redis://:***@host"),
        ("redis://:s@host", "redis://:***@host"),
        ("postgresql://u:s3c@ret/?#@host/db", "postgresql://u:***@host/db"),
        ("postgresql://user@host/db?password=s3cret", "postgresql://user@host/db?password=***"),
        ("postgresql:///db?user=u&password=s3cret", "postgresql:///db?user=***&password=***"),
        (
            "amqp://u:s3cret@h/v?ticket=redis%3A%2F%2F:s3cret@h&lease=5s",
            "amqp://u:***@h&lease=5s",
        ),
        # Rather too much is hidden than too little: "@" may stand in a password.
        ("amqp://h/v?ticket=redis://:s3cret@h", "amqp://h/v?ticket=redis:***@h"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    for words in (["check"], ["check", "--json"], ["stats"], ["stats", "-j"], ["list"]):
        ran = lapse(*words, url=url)
        assert b"s3c" not in ran.out + ran.err
    assert lapse("check", "--json", url=url).objects[0]["store"] == shown


# -- The output ------------------------------------------------------------------------


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [TOOL, "check"], stdout=full, stderr=subprocess.PIPE, env=environment(None), timeout=100
        )
    assert done.returncode == STORE
    assert b"could not be written" in done.stderr


# -- The manual page -------------------------------------------------------------------


def page() -> str:
    """The page as plain text, its lines joined."""
    done = subprocess.run(["mandoc", "-Tutf8", PAGE], capture_output=True, check=True, text=True)
    return re.sub(r"\s+", " ", re.sub(r".\x08", "", done.stdout))


def test_the_page_is_clean() -> None:
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", PAGE], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.skipif(shutil.which("man") is None, reason="man-db is not there; mandoc has looked")
def test_the_page_is_clean_for_groff() -> None:
    done = subprocess.run(
        ["man", "--warnings", "-l", PAGE],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"LC_ALL": "C.UTF-8", "MANWIDTH": "80"},
        text=True,
    )
    assert done.stderr == ""


def test_the_page_tells_what_help_tells() -> None:
    text = page()
    commands, options = text.split(" COMMANDS ", 1)[1].split(" OPTIONS ", 1)
    options = options.split(" ENVIRONMENT ", 1)[0]
    for command in COMMANDS:
        assert re.search(rf" {command} ", " " + commands), command
        for letter, name in OPTION.findall(lapse(command, "--help").text):
            said = f"-{letter}, --{name}" if letter else f" --{name}"
            assert said in options, f"{command}: {said}"


def test_the_page_names_no_option_that_is_none() -> None:
    known = {"version"}
    for command in COMMANDS:
        known |= {name for _, name in OPTION.findall(lapse(command, "--help").text)}
    assert set(re.findall(r"--([a-z][a-z-]*)", page())) <= known


# -- What bash completes ---------------------------------------------------------------


def complete(*words: str) -> set[str]:
    script = ROOT / "tools" / "lapse" / "completion.bash"
    program = f"""
        source {script}
        lapse() {{ "$LAPSE_TOOL" "$@"; }}
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lapse; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", program, "bash", *words],
        capture_output=True,
        text=True,
        env=environment(None) | {"LAPSE_TOOL": TOOL},
        timeout=100,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_completion() -> None:
    assert set(COMMANDS) <= complete("lapse", "")
    assert complete("lapse", "re") == {"reschedule", "requeue"}
    assert complete("lapse", "-u", "memory:", "qu") == {"queues"}
    assert complete("lapse", "requeue", "--a") == {"--all"}
    assert complete("lapse", "list", "--state", "p") == {"pending"}
    assert complete("lapse", "dead", "-r", "re") == {"rejected"}
