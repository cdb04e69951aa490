# tiers: full
"""The tool itself on a file of SQLite: a process for each command, beside other processes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tool import (  # noqa: E402
    DONE,
    NO,
    STORE,
    TOOL,
    USAGE,
    WORLD,
    environment,
    lapse,
    sqlite,
    world,
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that is there and empty."""
    url = sqlite(tmp_path)
    assert lapse("schedule", "first", "1h", url=url).code == DONE
    assert lapse("cancel", "first", url=url).code == DONE
    return url


def test_dead_letters_outlive_their_process(url: str) -> None:
    world(url, ["+reject", "d1", "x", "no such account"], ["+reject", "d2", "y", "late"], ["stats"])
    found = {o["id"]: o["error"] for o in lapse("dead", "--json", url=url).objects}
    assert found == {"d1": "no such account", "d2": "late"}
    assert lapse("requeue", "d1", "--delay", "1h", url=url).code == DONE
    assert lapse("purge", "--all", "--yes", url=url).text == "1 purged\n"
    assert lapse("dead", "--json", url=url).out == b""
    (order,) = lapse("list", "--json", url=url).objects
    assert (order["id"], order["state"], order["attempt"]) == ("d1", "pending", 0)


def test_an_order_that_another_process_holds(url: str) -> None:
    words = ["+take", "held", "q", ",", "watch", "--json", "--interval", "10ms"]
    with subprocess.Popen([WORLD, url, *words], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert json.loads(holder.stdout.readline())["running"] == 1
            assert lapse("get", "held", "-j", url=url).objects[0]["state"] == "running"
            assert lapse("reschedule", "held", "1h", url=url).text == "held running\n"
            cancelled = lapse("cancel", "held", url=url)
            assert (cancelled.text, cancelled.code) == ("held running\n", NO)
        finally:
            holder.kill()


def test_watch_sees_what_other_processes_do(url: str) -> None:
    command = [TOOL, "watch", "--json", "--interval", "20ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(url)) as watcher:
        try:
            assert watcher.stdout is not None
            assert json.loads(watcher.stdout.readline())["pending"] == 0
            assert lapse("schedule", "a", "1h", url=url).code == DONE
            changes = 0.0
            while True:
                look = json.loads(watcher.stdout.readline())
                changes = max(changes, look["pending_change_per_second"])
                if look["pending"] == 1:
                    break
            assert changes > 0
        finally:
            watcher.kill()


def test_lateness_of_what_nobody_takes(url: str) -> None:
    assert lapse("schedule", "a", "0", "-q", "nobody", url=url).code == DONE
    (stats,) = lapse("stats", "-j", url=url).objects
    assert stats["pending"] == 1
    assert 0 < stats["oldest_due_seconds"] < 100
    (look,) = lapse("watch", "-n", "1", "-i", "1ms", "-j", url=url).objects
    assert look["oldest_due_seconds"] > stats["oldest_due_seconds"]


def test_check(url: str) -> None:
    ran = lapse("check", "-j", url=f"{url}?poll=20ms")
    (found,) = ran.objects
    assert (ran.code, found["healthy"], found["store"]) == (DONE, True, f"{url}?poll=20ms")
    assert found["durable"] is True and found["shared"] is True
    assert found["poll_bound_seconds"] >= 0.02
    assert lapse("list", "-j", "-s", "pending,running,dead", url=url).out == b""


def test_no_write_leaves_no_trace(url: str) -> None:
    before = lapse("queues", "-j", url=url).out
    assert lapse("check", "--no-write", url=url).code == DONE
    assert lapse("queues", "-j", url=url).out == before
    assert b"lapse.check" not in before


def test_ids_of_any_bytes_in_many_processes(url: str) -> None:
    name = b"a\n\xff\x01\xe2\x82"
    assert lapse("schedule", name, "1h", url=url).code == DONE
    (order,) = lapse("list", "-j", url=url).objects
    assert bytes.fromhex(order["id_hex"]) == name
    assert lapse("cancel", "--hex", order["id_hex"], url=url).code == DONE


def test_the_guide_s_commands(url: str, tmp_path: Path) -> None:
    """The shell blocks of docs/cli.md, one after the other in an empty folder."""
    guide = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    folder = tmp_path / "guide"
    folder.mkdir()
    path = f"{Path(TOOL).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-eux", "-c", "\n".join(blocks)],
        cwd=folder,
        env=environment(None) | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "OID00000010 cancelled" in done.stdout
    assert (folder / "orders.db").is_file()


# -- What is no store ------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "stats", "dead", "queues", "watch", "metrics"])
def test_a_mistyped_name_makes_no_store(url: str, tmp_path: Path, command: str) -> None:
    ran = lapse(command, "--json", url=f"sqlite:///{tmp_path}/typo.db?poll=1s")
    assert (ran.code, ran.objects[0]["error"]) == (STORE, "Offline")
    ran = lapse("check", "--json", url=f"sqlite:///{tmp_path}/typo.db")
    assert (ran.code, ran.objects[0]["healthy"]) == (NO, False)
    assert not list(tmp_path.glob("typo*"))


@pytest.mark.parametrize(
    "words", [["a"], ["a", "soon"], ["", "1s"], ["a", "1s", "--at", "@0"], ["--hex", "zz", "1s"]]
)
def test_a_wrong_command_line_makes_no_store(url: str, tmp_path: Path, words: list[str]) -> None:
    ran = lapse("schedule", *words, url=f"sqlite:///{tmp_path}/new.db")
    assert (ran.code, ran.out) == (USAGE, b"")
    assert not list(tmp_path.glob("new*"))


def test_what_is_no_database(url: str, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_bytes(b"these are notes, and no database\n" * 100)
    for command, code in (("list", STORE), ("check", NO)):
        ran = lapse(command, "--json", url=f"sqlite:///{tmp_path}/notes.db")
        assert ran.code == code
        assert ran.objects[0]["error"] in ("BadStore", "System", "Invalid")
    assert (tmp_path / "notes.db").read_bytes().startswith(b"these are notes")


def test_where_no_file_can_be(url: str, tmp_path: Path) -> None:
    missing = lapse("schedule", "a", "1s", "--json", url=f"sqlite:///{tmp_path}/missing/orders.db")
    assert (missing.code, missing.objects[0]["error"]) == (USAGE, "BadUrl")
    assert "does not exist" in missing.objects[0]["detail"]
    folder = lapse("schedule", "a", "1s", "--json", url=f"sqlite:///{tmp_path}")
    assert (folder.code, folder.objects[0]["error"]) == (USAGE, "BadUrl")


@pytest.mark.parametrize("form", ["sqlite:", "sqlite:orders.db", "sqlite://", "sqlite:///"])
def test_urls_that_name_no_file(url: str, form: str) -> None:
    ran = lapse("stats", "--json", url=form)
    assert (ran.code, ran.objects[0]["error"]) == (USAGE, "BadUrl")


def test_an_option_that_is_none(url: str) -> None:
    ran = lapse("stats", "--json", url=url + "?cheese=1")
    assert (ran.code, ran.objects[0]["error"]) == (USAGE, "BadUrl")


# -- On a terminal ---------------------------------------------------------------------


def on_terminal(*words: str, url: str) -> tuple[int, str, str]:
    """Run the tool with standard output and error on terminals of their own."""
    ends = [pty.openpty(), pty.openpty()]
    with subprocess.Popen(
        [TOOL, *words], stdout=ends[0][1], stderr=ends[1][1], env=environment(url)
    ) as tool:
        for _, inner in ends:
            os.close(inner)
        texts = {outer: b"" for outer, _ in ends}
        open_ends = set(texts)
        while open_ends:
            for outer in select.select(list(open_ends), [], [], 100)[0]:
                try:
                    read = os.read(outer, 65536)
                except OSError:  # the other end is closed
                    read = b""
                texts[outer] += read
                if not read:
                    open_ends.remove(outer)
        code = tool.wait(100)
    for outer in texts:
        os.close(outer)
    out, err = (text.decode() for text in texts.values())
    return code, out, err


def test_watch_stays_on_its_line(url: str) -> None:
    code, out, _ = on_terminal("watch", "-n", "3", "-i", "1ms", url=url)
    assert code == DONE
    heading, line, rest = out.split("\r\n")
    assert heading.split()[0] == "PENDING" and rest == ""
    assert len(re.findall(r"\r +0 +\+0\.0[^\r]*\x1b\[K", line)) == 3


def test_long_work_shows_how_far_it_is(url: str) -> None:
    world(url, *(["+reject", f"d{n}", "x"] for n in range(3)), ["stats"])
    code, out, err = on_terminal("requeue", "--all", url=url)
    assert (code, out) == (DONE, "3 requeued\r\n")
    assert "\rrequeueing 1 of 3\x1b[K" in err
    assert err.endswith("\r\x1b[K")
    assert lapse("dead", "-j", url=url).out == b""


def test_a_list_on_a_terminal_is_its_own_progress(url: str) -> None:
    lapse("schedule", "a", "1h", url=url)
    code, out, err = on_terminal("list", url=url)
    assert (code, err) == (DONE, "")
    assert len(out.splitlines()) == 2
