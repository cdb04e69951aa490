# tiers: quick full
"""The package as a user meets it: the module's functions, lists, numbers, docs and stubs."""

import ast
import inspect
import pathlib
import pickle
import pydoc
import re
import threading
import types
from datetime import datetime, timedelta, timezone

import lapse
import pytest
from lapse import _lapse
from support import Story, until


@pytest.fixture
def default():
    return lapse.default_scheduler()


def test_the_modules_functions(default):
    ran, done = [], threading.Event()

    def close_unpaid(order_id):
        ran.append(order_id)
        done.set()

    assert lapse.schedule("paid", 0.05, close_unpaid) > 0
    assert lapse.schedule("unpaid", delay=timedelta(seconds=3600), callback=close_unpaid)
    assert lapse.get("unpaid").state is lapse.State.PENDING
    assert {info.id for info in lapse.orders(lapse.State.PENDING)} == {"paid", "unpaid"}
    assert lapse.cancel("paid") is lapse.Fate.CANCELLED
    assert lapse.reschedule("unpaid", 0.01) is lapse.Fate.RESCHEDULED
    assert done.wait(30)
    assert ran == ["unpaid"]
    assert lapse.schedule_at("past", 0, close_unpaid)
    until(lambda: len(ran) == 2)
    assert lapse.cancel_wait("past", 5) in (lapse.Fate.RUNNING, lapse.Fate.UNKNOWN)
    assert lapse.schedule_many([("m", 60, close_unpaid)])[0] > 0
    assert lapse.stats()["pending"] == 1
    assert lapse.default_scheduler() is default


def test_the_default_can_be_closed_and_comes_back(default):
    lapse.schedule("a", 60, print)
    default.close()
    assert lapse.get("a") is None
    assert lapse.schedule("a", 60, print) > 0
    assert lapse.default_scheduler() is not default


def test_the_default_is_stopped_and_closed_by_the_module(default):
    lapse.schedule("a", 60, print)
    lapse.stop()
    with pytest.raises(lapse.Closed):
        lapse.schedule("b", 60, print)
    assert [info.id for info in lapse.orders()] == ["a"]
    lapse.close(timeout=30)
    assert default.closed
    lapse.close()
    lapse.stop()
    assert lapse.schedule("b", 60, print) > 0
    assert lapse.default_scheduler() is not default


def test_closing_the_default_makes_none(monkeypatch):
    monkeypatch.setattr(lapse._scheduler, "_default", None)
    lapse.close()
    lapse.stop()
    assert lapse._scheduler._default is None


def test_closing_tells_what_did_not_run(caplog):
    caplog.set_level("INFO", logger="lapse")
    with lapse.Scheduler(workers=0) as s:
        s.schedule("a", 60, print)
        s.schedule("b", 60)
    s.close()
    story = Story()
    story.s.schedule("a", 1, story.mark)
    assert story.at(1) == ["a"]
    story.s.close()
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "2 pending orders will not run: their Scheduler was closed")
    ]


def test_the_fields_of_an_info_are_documented():
    for name in lapse.Info._fields:
        assert "Alias for" not in getattr(lapse.Info, name).__doc__, name
    assert "help(lapse.Scheduler) is the reference" in lapse.__doc__


def test_schedule_many_gives_one_result_per_order(story):
    results = story.s.schedule_many(
        [
            ("a", 1, story.mark),
            ("a", 1, story.mark),
            ("b", float("nan"), story.mark),
            ("c", 1, story.mark, b"p", "q", False),
            {"order_id": "d", "delay": timedelta(seconds=1), "callback": story.mark},
            {"order_id": "e"},
            {"order_id": "e", "delay": 1, "dealy": 2},
            {"order_id": "e", "delay": 1, "at": 2},
            ("f",),
            "g1",
            ("a\0", 1),
            (5, 1),
            ("a", 2, story.mark, None, None, True),
        ]
    )
    kinds = [int if isinstance(r, int) else type(r) for r in results]
    assert kinds == [int, lapse.Exists, lapse.Range, int, int, *[TypeError] * 5,
                     lapse.BadId, TypeError, int]
    assert "'a'" in str(results[1])
    assert story.at(1) == ["c", "d"] and story.ran[0].payload == b"p"
    assert story.at(2) == ["a"]
    assert story.s.schedule_many([]) == [] and story.s.schedule_many(iter([])) == []
    with pytest.raises(TypeError):
        story.s.schedule_many(5)


def test_schedule_many_takes_instants(story):
    wall = datetime(2026, 1, 1, tzinfo=timezone.utc)  # where a manual wall clock begins
    results = story.s.schedule_many(
        [
            {"order_id": "past", "at": 0, "callback": story.mark},
            {"order_id": "a", "at": wall + timedelta(seconds=5), "callback": story.mark},
            {"order_id": "b", "at": wall.timestamp() + 5, "queue": "q", "payload": b"p"},
            {"order_id": "c", "at": datetime(2026, 1, 1), "callback": story.mark},
            {"order_id": "d", "at": 6 * 10**9, "callback": story.mark},
            ("e", wall, story.mark),
        ]
    )
    kinds = [int if isinstance(r, int) else type(r) for r in results]
    assert kinds == [int, int, int, lapse.Invalid, lapse.Range, TypeError]
    assert story.at(0) == ["past"] and story.at(4.999) == []
    assert story.at(5) == ["a"]
    assert story.s.get("b").due == wall.timestamp() + 5


def test_schedule_many_starts_the_workers():
    ran = []
    with lapse.Scheduler() as s:
        s.schedule_many([(f"o{i}", 0, ran.append) for i in range(1000)])
        until(lambda: len(ran) == 1000)
    assert ran == [f"o{i}" for i in range(1000)]


def test_orders_and_get(story):
    for i in range(3000):
        story.s.schedule(f"o{i}", 10 + i, story.mark, payload=b"%d" % i)
    story.s.schedule("now", 0, lambda order: seen.append(story.s.orders(lapse.State.RUNNING)))
    seen = []
    story.at(0)
    assert [info.id for info in seen[0]] == ["now"]
    listed = story.s.orders(lapse.State.PENDING | lapse.State.RUNNING)
    assert sorted(info.id for info in listed) == sorted(f"o{i}" for i in range(3000))
    assert story.s.orders() == listed
    info = story.s.get("o7")
    assert info in listed
    assert (info.id, info.queue, info.payload, info.remaining) == ("o7", "", b"7", 17.0)
    assert (info.attempt, info.reason, info.error, info.ended) == (0, lapse.Reason.NONE, None, 0)
    assert info.due == 1767225617.0
    assert story.s.get("nobody") is None


def test_stats_have_the_names_of_the_header(story):
    header = pathlib.Path(__file__).parents[2] / "core" / "include" / "lapse.h"
    body = header.read_text().split("typedef struct lapse_stats {")[1].split("}")[0]
    names = []
    for line in body.splitlines():
        words = line.split("/*")[0].split(";")[0].replace(",", " ").split()
        if words and words[0] in ("uint64_t", "lapse_ns"):
            names += [word.split("[")[0] for word in words[1:]]
    stats = story.s.stats()
    assert sorted(stats) == sorted(names)
    story.s.schedule("o", 1, story.mark)
    story.at(1.5)
    after = story.s.stats()
    assert (after["scheduled"], after["started"], after["done"]) == (1, 1, 1)
    assert 0.5 <= after["late_max"] <= 0.5 * (1 + 1 / 16)
    assert isinstance(after["late_p50"], float) and isinstance(after["done"], int)
    assert after["dead_by"] == dict.fromkeys(["failed", "rejected", "expired", "maxlen", "lost"], 0)


def test_dead_letter_oldest():
    story = Story(max_pending=2, overflow="dead_letter_oldest")
    for name in ("a", "b", "c"):
        story.s.schedule(name, 1, story.mark)
    (dead,) = story.s.orders(lapse.State.DEAD)
    assert (dead.id, dead.reason) == ("a", lapse.Reason.MAXLEN)
    assert story.at(1) == ["b", "c"]


@pytest.mark.parametrize("engine", ["wheel&tick=10ms&slots=128", "heap"])
def test_urls(engine):
    story = Story(f"memory:?engine={engine}")
    story.s.schedule("o", 0.011, story.mark)
    assert story.at(0.010) == []
    assert story.at(0.011) == (["o"] if engine == "heap" else [])
    assert story.at(0.02) == ([] if engine == "heap" else ["o"])


def test_on_error_can_be_set_later(story):
    seen = []
    assert story.s.on_error is None
    story.s.on_error = lambda order, error: seen.append((order, error))
    story.s.schedule("e", 0, lambda order: 1 / 0)
    story.at(0)
    assert seen[0][0] == "e" and isinstance(seen[0][1], ZeroDivisionError)
    with pytest.raises(TypeError):
        story.s.on_error = 5
    story.s.on_error = None
    assert story.s.on_error is None


def test_process_takes_at_most_max(story):
    for i in range(10):
        story.s.schedule(f"o{i}", 0, story.mark)
    assert [story.s.process(3), story.s.process(max=3), story.s.process()] == [3, 3, 4]
    assert story.ran == [f"o{i}" for i in range(10)]


def test_a_url_is_not_shown():
    with lapse.Scheduler("memory:?tick=2ms", workers=0) as s:
        s.schedule("o", 1)
        assert repr(s) == "<lapse.Scheduler memory: 1 pending, 0 running>"
    assert repr(s) == "<lapse.Scheduler memory: closed>"


def test_enums_have_the_numbers_of_the_core():
    assert [fate.value for fate in lapse.Fate] == [0, 1, 2, 3, 4]
    assert [state.value for state in lapse.State] == [1, 2, 4, 8]


def is_ours(thing):
    """Whether an attribute of a class is made by lapse, and not by what it inherits from."""
    return callable(thing) or isinstance(thing, (property, types.GetSetDescriptorType))


def test_everything_public_is_documented():
    assert set(lapse.__all__) <= set(dir(lapse))
    public = {n for n, v in vars(lapse).items() if n[0] != "_" and not inspect.ismodule(v)}
    assert public - set(lapse.__all__) == set()
    for name in lapse.__all__:
        thing = getattr(lapse, name)
        if callable(thing):
            assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            mine = [c for c in thing.__mro__ if c.__module__.startswith("lapse")]
            assert all(vars(c).get("__doc__") for c in mine), name
            for attribute, value in ((a, v) for c in mine for a, v in vars(c).items()):
                if not attribute.startswith("_") and is_ours(value):
                    assert value.__doc__, f"{name}.{attribute}"
    for function in (lapse.schedule, lapse.cancel, lapse.Scheduler.schedule, lapse.Scheduler.take):
        assert inspect.signature(function)


def test_help_tells_all_there_is():
    """The text of the module names every function and class, and is what help() begins with."""
    words = set(re.findall(r"\w+", lapse.__doc__))
    errors = {n for n in lapse.__all__ if isinstance(getattr(lapse, n), type)
              and issubclass(getattr(lapse, n), lapse.Error)}
    missing = {n for n in lapse.__all__ if callable(getattr(lapse, n))} - errors - words
    assert missing == set()
    shown = pydoc.plain(pydoc.render_doc(lapse))
    assert re.search(r"\n    schedule\(\s*order_id,\s*delay,\s*callback=None", shown)
    assert shown.index("lapse.schedule(") < shown.index("PACKAGE CONTENTS")


def test_public_classes_are_shown_by_their_public_names():
    for name in lapse.__all__:
        thing = getattr(lapse, name)
        if isinstance(thing, type) and name not in ("Policy", "Stats", "QueueStats"):
            assert f"{thing.__module__}.{thing.__qualname__}" in (f"lapse.{name}", "lapse.Range")
    for value in (lapse.Fate.DONE, lapse.State.DEAD, lapse.Reason.LOST, lapse.Retry(5)):
        assert type(pickle.loads(pickle.dumps(value))) is type(value)


def test_the_types_of_policies_and_statistics_are_those_there_are(story):
    kinds = inspect.signature(lapse.Scheduler.handle).parameters.values()
    options = {p.name: p.annotation for p in kinds if p.kind is p.KEYWORD_ONLY}
    seconds = {"Seconds": "float | timedelta", "Seconds | None": "float | timedelta | None"}
    policy = {name: kind.__forward_arg__ for name, kind in lapse.Policy.__annotations__.items()}
    assert {name: seconds.get(kind, kind) for name, kind in options.items()} == policy
    story.s.schedule("o", 1, queue="q")
    for made, kind in [
        (story.s.stats(), lapse.Stats),
        (story.s.queue_stats("q"), lapse.QueueStats),
    ]:
        told = {name: getattr(t, "__forward_arg__", t) for name, t in kind.__annotations__.items()}
        assert {name: type(value).__name__ for name, value in made.items()} == {
            name: kind.partition("[")[0] for name, kind in told.items()
        }


def test_the_stub_names_what_there_is():
    stub = ast.parse(pathlib.Path(lapse.__file__).with_name("_lapse.pyi").read_text())

    def names(body):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.AnnAssign):
                yield node.target.id

    hidden = {"_Given", "_Found"}
    real = {n for n in vars(_lapse) if not n.startswith("__")} | {"__version__"}
    assert set(names(stub.body)) - hidden == real
    for node in stub.body:
        if isinstance(node, ast.ClassDef) and node.name in ("Scheduler", "ManualClock", "Worker"):
            members = {
                n for n in vars(getattr(_lapse, node.name)) if not n.startswith("__")
            }
            assert set(names(node.body)) - {"__new__"} == members, node.name
    stub_signatures = {
        f"{c.name}.{f.name}": [a.arg for a in f.args.args][1:]
        for c in stub.body
        if isinstance(c, ast.ClassDef) and c.name == "Scheduler"
        for f in c.body
        if isinstance(f, ast.FunctionDef)
    }
    for name in ("schedule", "schedule_at", "cancel", "cancel_wait", "reschedule", "take", "poll"):
        parameters = list(inspect.signature(getattr(_lapse.Scheduler, name)).parameters)[1:]
        assert parameters == stub_signatures[f"Scheduler.{name}"], name
