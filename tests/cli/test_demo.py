# tiers: quick
"""`lapse demo` tells the story of the shop, as text and as JSON."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import check_demos  # noqa: E402
from tool import DONE, TOOL, lapse  # noqa: E402


def test_the_story_is_the_one_of_the_examples() -> None:
    print(check_demos.run("shop", [TOOL, "demo"]))


def test_speed_and_json() -> None:
    """Exactly one winner an order, and never early. Who wins where it is close is left open:
    a busy machine may keep a customer waiting."""
    ran = lapse("demo", "--speed", "30", "--json", url="nowhere:")
    assert (ran.code, ran.err) == (DONE, b"")
    *events, summary = ran.objects
    told: dict[str, list[str]] = {f"OID{n:08}": [] for n in range(1, 9)}
    for event in events:
        told[event["id"]].append(event["event"])
    for order, story in told.items():
        assert story in (["placed", "paid"], ["placed", "closed"], ["placed", "closed", "too late"])
        # What nobody tries to pay is closed.
        assert "paid" not in story or order[-1] in "13567"
    closed = [e for e in events if e["event"] == "closed"]
    paid = 8 - len(closed)
    assert summary == {"placed": 8, "paid": paid, "closed": len(closed), "stock": 100 - paid}
    placed = {e["id"]: e["at_seconds"] for e in events if e["event"] == "placed"}
    for event in closed:
        assert event["late_seconds"] >= 0
        # A tenth of a second at this speed.
        assert event["at_seconds"] - placed[event["id"]] >= 0.1
