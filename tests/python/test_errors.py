"""What callbacks raise: verdicts, and the one rule for where an error goes."""

import logging
import sys

import lapse
import pytest
from support import Story, until

KINDS = [ValueError("v"), SystemExit(5), KeyboardInterrupt(), MemoryError()]


def raiser(error):
    def callback(order):
        raise error

    return callback


def test_p28_one_error_stops_nothing():
    errors = []
    story = Story(on_error=lambda order, error: errors.append((order, error)))
    for i in range(1000):
        story.s.schedule(
            str(i), 0.05, raiser(KINDS[i // 2 % 4]) if i % 2 else story.mark
        )
    ran = story.at(0.06)
    assert ran == [str(i) for i in range(0, 1000, 2)]
    assert [order for order, _ in errors] == [str(i) for i in range(1, 1000, 2)]
    assert [error for _, error in errors] == [KINDS[i // 2 % 4] for i in range(1, 1000, 2)]
    story.s.schedule("later", 0.05, story.mark)
    assert story.at(0.2) == ["later"]
    assert story.s.stats()["failed"] == 500 and story.pending == 0


@pytest.mark.parametrize("error", KINDS, ids=lambda e: type(e).__name__)
def test_p28_a_worker_survives(error):
    ran, errors = [], []
    with lapse.Scheduler(on_error=lambda *what: errors.append(what)) as s:
        for i in range(10):
            s.schedule(f"bad{i}", 0, raiser(error))
            s.schedule(f"good{i}", 0, ran.append)
        until(lambda: len(ran) == 10 and len(errors) == 10)
    assert {what[1] for what in errors} == {error}


class Handlers:
    def __init__(self):
        self.calls = []

    def record(self, order, error):
        self.calls.append((order, error))

    def broken(self, order, error):
        self.calls.append((order, error))
        raise SystemExit("the handler is broken")


@pytest.mark.parametrize("handler", [None, "record", "broken"])
@pytest.mark.parametrize("error", KINDS, ids=lambda e: type(e).__name__)
def test_p40_one_report_each(caplog, monkeypatch, handler, error):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    handlers = Handlers()
    story = Story(on_error=handler and getattr(handlers, handler))
    story.s.schedule("e", 0, raiser(error))
    story.at(0)
    assert [call[1] for call in handlers.calls] == ([error] if handler else [])
    records = [r for r in caplog.records if r.name == "lapse"]
    if handler == "record":
        assert records == []
    else:
        assert len(records) == 1 and records[0].levelno == logging.ERROR
        assert "'e'" in records[0].getMessage()
        reported = records[0].exc_info[1]
        if handler == "broken":
            assert isinstance(reported, SystemExit)
        else:
            assert reported is error and reported.__traceback__ is not None
    assert unraisable == []
    assert sys.exc_info() == (None, None, None) and len([]) == 0
    assert story.s.schedule("e", 0, story.mark) and story.at(1) == ["e"]


def test_p40_broken_logging_is_unraisable(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: unraisable.append(what.exc_value))

    class Broken(logging.Handler):
        def emit(self, record):
            raise OSError("disk full")

    logger, handler = logging.getLogger("lapse"), Broken()
    logger.addHandler(handler)
    try:
        story = Story()
        story.s.schedule("e", 0, raiser(ValueError("v")))
        story.s.schedule("next", 0, story.mark)
        assert story.at(0) == ["next"]
    finally:
        logger.removeHandler(handler)
    assert [type(error) for error in unraisable] == [OSError]


def test_p40_any_result_is_done(story):
    class Odd:
        def __bool__(self):
            raise ValueError

        __eq__ = __str__ = __index__ = __bool__
        __hash__ = None

    for i, result in enumerate([None, 5, "x", Odd(), object()]):
        story.s.schedule(str(i), 0, lambda order, result=result: result)
    story.at(0)
    assert story.s.stats()["done"] == 5 and story.s.stats()["failed"] == 0


def test_an_exception_whose_text_fails():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    errors = []
    story = Story(on_error=lambda order, error: errors.append(error))
    story.s.schedule("e", 0, raiser(mute := Mute()))
    story.s.schedule("s", 0, raiser(odd := ValueError("\udcff\ud800")))
    story.at(0)
    assert errors == [mute, odd]


def test_retry_is_honoured(story):
    def flaky(order):
        story.mark(order)
        if order.attempt < 3:
            raise lapse.Retry(2, "provider is down")

    story.s.schedule("r", 1, flaky, payload=b"p")
    assert story.at(1) == ["r"] and story.at(2.9) == []
    assert story.at(3) == ["r"] and story.at(5) == ["r"]
    assert [order.attempt for order in story.ran] == [1, 2, 3]
    assert len({order.generation for order in story.ran}) == 1
    fences = [order.fence for order in story.ran]
    assert fences == sorted(set(fences)) and story.pending == 0
    assert {order.payload for order in story.ran} == {b"p"}


def test_retry_with_a_bad_delay_is_an_error():
    errors = []
    story = Story(on_error=lambda order, error: errors.append(error))

    def bad(order):
        raise lapse.Retry(float("nan"))

    class Half(lapse.Retry):
        def __init__(self):
            Exception.__init__(self)

    story.s.schedule("nan", 0, bad)
    story.s.schedule("half", 0, raiser(Half()))
    story.at(0)
    assert [type(error) for error in errors] == [lapse.Range, AttributeError]


def test_reject_makes_a_dead_letter(story):
    story.s.schedule("hopeless", 0, raiser(lapse.Reject("no such order")))
    story.s.schedule("silent", 0, raiser(lapse.Reject()))
    story.at(0)
    dead = {info.id: info for info in story.s.orders(lapse.State.DEAD)}
    assert dead["hopeless"].error == "no such order"
    assert {info.reason for info in dead.values()} == {lapse.Reason.REJECTED}
    assert story.s.stats()["rejected"] == 2


async def coroutine(order):
    pass


async def async_generator(order):
    yield


def generator(order):
    yield


class Service:
    async def close(self, order):
        pass

    async def __call__(self, order):
        pass


def test_a_coroutine_function_is_refused(story):
    import functools

    for lazy in (
        coroutine,
        async_generator,
        generator,
        Service().close,
        functools.partial(coroutine),
        functools.partial(functools.partial(Service().close)),
    ):
        story.s.schedule("plain", 1, story.mark)
        with pytest.raises(TypeError, match="plain functions"):
            story.s.schedule("c", 1, lazy)
        assert isinstance(story.s.schedule_many([("c", 1, lazy)])[0], TypeError)
        story.s.cancel("plain")
    with pytest.raises(TypeError):
        story.s.schedule("c", 1, "not callable")
    assert story.pending == 0


def test_a_coroutine_that_comes_back_is_an_error(recwarn):
    errors = []
    story = Story(on_error=lambda order, error: errors.append(error))
    story.s.schedule("lambda", 0, lambda order: coroutine(order))
    story.s.schedule("object", 0, Service())
    story.at(0)
    assert [type(error) for error in errors] == [TypeError, TypeError]
    assert [w for w in recwarn if issubclass(w.category, RuntimeWarning)] == []


def test_every_error_of_the_map():
    names = """Invalid Range BadId Exists Full Closed Forked InCallback Timeout Stale Unknown
        BadUrl NoStore Unsupported Mixed Interrupted Unsure NoMemory System""".split()
    for number, name in enumerate(names, 1):
        error = getattr(lapse, name)
        assert issubclass(error, lapse.Error) and error.code == -number and error.__doc__
        assert f"{error.__module__}.{error.__name__}" == f"lapse.{name}"
        assert str(error("text")) == "text"
    for name, builtin in {
        "Range": ValueError,
        "BadId": ValueError,
        "BadUrl": ValueError,
        "Invalid": ValueError,
        "Timeout": TimeoutError,
        "NoMemory": MemoryError,
        "System": OSError,
        "Closed": RuntimeError,
    }.items():
        assert issubclass(getattr(lapse, name), builtin)
    assert lapse.RangeError is lapse.Range and lapse.Error.code == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"url": "nosuch:"}, lapse.Error),
        ({"url": "memory:?tick=nonsense"}, lapse.BadUrl),
        ({"url": 5}, TypeError),
        ({"workers": -1}, ValueError),
        ({"workers": 257}, ValueError),
        ({"workers": True}, TypeError),
        ({"workers": "2"}, TypeError),
        ({"on_error": 5}, TypeError),
        ({"max_pending": -1}, OverflowError),
        ({"max_pending": True}, TypeError),
        ({"max_dead": 1.5}, TypeError),
        ({"overflow": "explode"}, ValueError),
        ({"nonsense": 1}, TypeError),
    ],
)
def test_opening_refuses(arguments, error):
    with pytest.raises(error):
        lapse.Scheduler(**arguments)


def test_a_scheduler_that_was_never_opened():
    s = lapse.Scheduler.__new__(lapse.Scheduler)
    for call in (
        lambda: s.schedule("x", 1, print),
        lambda: s.reschedule("x", 1),
        lambda: s.get("x"),
        lambda: s.process(),
        lambda: s.take(timeout=0),
        lambda: s.fileno(),
        lambda: s.stats(),
    ):
        with pytest.raises(lapse.Closed):
            call()
    assert s.cancel("x") is lapse.Fate.UNKNOWN and s.closed
    assert "closed" in repr(s)
    s.stop()


def test_wrong_calls(story):
    for call in (
        lambda: story.s.schedule(),
        lambda: story.s.schedule("x"),
        lambda: story.s.schedule("x", 1, print, None, None, False, 7),
        lambda: story.s.schedule("x", 1, delay=2),
        lambda: story.s.schedule("x", 1, dealy=2),
        lambda: story.s.cancel(),
        lambda: story.s.cancel("x", generation="1"),
        lambda: story.s.cancel("x", True),
        lambda: story.s.schedule("x", 1, payload="text"),
        lambda: story.s.schedule("x", 1, queue=b"q"),
        lambda: story.s.process(max=True),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(lapse.Invalid):
        story.s.schedule("x", 1, queue="a\0b")
    assert story.pending == 0
