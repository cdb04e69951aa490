# tiers: small
"""Every demo in every language that this build has tells the same story.

LAPSE_BUILD_DIR is the build folder. What it holds decides which languages are tried; that
none is there is a failure.
"""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "python")]

import check_demos  # noqa: E402
from debian import of_debian  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["LAPSE_BUILD_DIR"])
LUAS = {"lua5.4": "5.4", "lua5.1": "5.1", "luajit": "5.1"}


def languages() -> dict[str, list[str]]:
    """The command of each language, with {demo} where the demo's name goes."""
    found = {}
    if (BUILD / "examples" / "c").is_dir():
        found["c"] = [str(BUILD / "examples" / "c" / "{demo}")]
    if list((BUILD / "python").glob("lapse/_lapse*.so")):
        found["python"] = [sys.executable, str(ROOT / "examples" / "python" / "{demo}.py")]
    for interpreter, version in LUAS.items():
        if (BUILD / "lua" / version).is_dir():
            script = str(ROOT / "examples" / "lua" / "{demo}.lua")
            found[interpreter] = [str(ROOT / "scripts" / "with-lua"), str(BUILD), interpreter, script]
    return found


@pytest.fixture(scope="module")
def told() -> Iterator[dict[tuple[str, str], Future[str]]]:
    """What each demo told. They do little but wait, so that several run at once."""
    with ThreadPoolExecutor(8) as pool:
        yield {
            (language, demo): pool.submit(
                check_demos.run, demo, [word.replace("{demo}", demo) for word in command]
            )
            for language, command in languages().items()
            for demo in check_demos.DEMOS
        }


@pytest.mark.parametrize("demo", check_demos.DEMOS)
@pytest.mark.parametrize("language", languages())
def test_demo(told: dict[tuple[str, str], Future[str]], language: str, demo: str) -> None:
    print(told[language, demo].result())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_shop_in_an_event_loop(loop: str) -> None:
    program = str(ROOT / "examples" / "python" / "shop_asyncio.py")
    command = [sys.executable, program]
    if loop == "uvloop":
        of_debian("uvloop")
        start = f"import runpy, uvloop; uvloop.install(); runpy.run_path({program!r})"
        command = [sys.executable, "-c", start]
    print(check_demos.run("shop", command))


def test_there_is_a_language() -> None:
    assert languages()


GOOD = {
    "delay_queue": [f"{t:6.2f} s  {f'OID{t:08.0f}':<12} taken    late 0.2 ms" for t in (3, 6, 9, 12, 15)],
    "timing_wheel": [f"{t:6.2f} s  clock        tick     {t}" for t in (1, 2, 3, 4)]
    + ["  5.00 s  OID00000010  closed   late 0.3 ms"],
    "durable": [
        f"{t:6.2f} s  {order_id:<12} {event:<8} {note}".rstrip()
        for t, order_id, event, note in (
            (0, "OID1", "placed", ""),
            (0, "OID2", "placed", ""),
            (0, "OID3", "placed", ""),
            (3.0, "OID2", "paid", ""),
            (3.0, "OID1", "closed", "late 1000.4 ms"),
            (3.0, "OID3", "closed", "late 1000.3 ms"),
        )
    ],
    "delayed_retry": [
        f"{t:6.2f} s  {'OID00000010':<12} attempt  {n}" for n, t in enumerate((0, 1, 3, 7), 1)
    ]
    + ["  7.00 s  OID00000010  done"],
    "dead_letters": [
        f"{t:6.2f} s  {order_id:<12} {event:<8} {note}".rstrip()
        for t, order_id, event, note in (
            (0.5, "O1", "done", "attempt 1"),
            (0.5, "O2", "dead", "rejected: no such account"),
            (0.5, "O3", "failed", "attempt 1: gateway down"),
            (1.5, "O3", "failed", "attempt 2: gateway down"),
            (3.5, "O3", "failed", "attempt 3: gateway down"),
            (3.5, "O3", "dead", "failed: gateway down"),
            (3.5, "O2", "letter", "rejected, attempt 1"),
            (3.5, "O3", "letter", "failed, attempt 3"),
            (3.5, "O2", "purged", ""),
            (3.5, "O3", "requeued", ""),
            (4.0, "O3", "done", "attempt 1"),
        )
    ],
}


@pytest.mark.parametrize("demo", GOOD)
def test_the_checker_accepts_the_story(demo: str) -> None:
    check_demos.DEMOS[demo](GOOD[demo], 1)


@pytest.mark.parametrize("demo", GOOD)
@pytest.mark.parametrize("at", range(5))
def test_the_checker_misses_a_line(demo: str, at: int) -> None:
    with pytest.raises(check_demos.Wrong):
        check_demos.DEMOS[demo](GOOD[demo][:at] + GOOD[demo][at + 1 :], 1)


@pytest.mark.parametrize("demo", GOOD)
def test_the_checker_sees_what_is_early(demo: str) -> None:
    with pytest.raises(check_demos.Wrong):
        check_demos.DEMOS[demo](GOOD[demo], 0.9)
