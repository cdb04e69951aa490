# tiers: quick full
"""What callbacks raise: verdicts, and the one rule for where an error goes."""

import logging
import sys
from datetime import datetime, timezone

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


@pytest.mark.parametrize("verdict", [lapse.Reject, lapse.Reject("hopeless")], ids=repr)
def test_a_returned_reject_is_a_verdict(story, verdict):
    story.s.schedule("o", 0, lambda order: verdict)
    story.at(0)
    (dead,) = story.s.orders(lapse.State.DEAD)
    wanted = None if isinstance(verdict, type) else "hopeless"
    assert (dead.reason, dead.error) == (lapse.Reason.REJECTED, wanted)
    assert story.s.stats()["done"] == 0


def test_a_returned_retry_is_a_verdict(story):
    class Later(lapse.Retry):
        def __init__(self):
            super().__init__(3)

    def flaky(order):
        story.mark(order)
        return {1: lapse.Retry(2), 2: Later, 3: lapse.Retry}.get(order.attempt)

    story.s.handle("q", flaky, backoff=7, jitter_percent=-1, backoff_percent=100)
    story.s.schedule("r", 1, flaky)
    assert story.at(1) == ["r"] and story.at(2.9) == [] and story.at(3) == ["r"]
    assert story.at(5.9) == [] and story.at(6) == ["r"]
    assert story.at(12.9) == [] and story.at(13) == ["r"]
    assert story.s.stats()["retried"] == 3 and story.s.stats()["done"] == 1


def test_a_returned_class_that_cannot_be_made_is_an_error():
    class Picky(lapse.Retry):
        def __init__(self, why):
            super().__init__(1)

    errors = []
    story = Story(on_error=lambda order, error: errors.append(error))
    story.s.schedule("o", 0, lambda order: Picky)
    story.s.schedule("class", 0, lambda order: ValueError)  # no verdict, as any result
    story.at(0)
    assert [type(error) for error in errors] == [TypeError]
    assert story.s.stats()["failed"] == 1 and story.s.stats()["retried"] == 0


def test_the_log_names_order_queue_and_attempt(caplog, story):
    story.s.handle("q", raiser(ValueError("v")), backoff=1, jitter_percent=-1)
    story.s.schedule("A", 0, queue="q")
    story.at(0)
    story.at(1)
    assert [record.getMessage() for record in caplog.records] == [
        "order 'A' (queue 'q', attempt 1) failed",
        "order 'A' (queue 'q', attempt 2) failed",
    ]


async def coroutine(order):
    pass


async def async_generator(order):
    yield


def generator(order):
    yield


class Service:
    async def close(self, order):
        pass



class Awaited:
    async def __call__(self, order):
        pass


class Late:
    def __call__(self, order):
        return coroutine(order)


def test_a_coroutine_function_is_refused(story):
    import functools

    for lazy in (
        coroutine,
        async_generator,
        generator,
        Service().close,
        functools.partial(coroutine),
        functools.partial(functools.partial(Service().close)),
        Awaited(),
        functools.partial(Awaited()),
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
    story.s.schedule("object", 0, Late())
    story.at(0)
    assert [type(error) for error in errors] == [TypeError, TypeError]
    assert all("run_coroutine_threadsafe(f(order), loop).result()" in str(e) for e in errors)
    assert [w for w in recwarn if issubclass(w.category, RuntimeWarning)] == []


def test_every_error_of_the_map():
    names = """Invalid Range BadId Exists Full Closed Forked InCallback Timeout Stale Unknown
        BadUrl NoStore Unsupported Mixed Interrupted Unsure NoMemory System Offline BadStore""".split()
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
        ({"max_pending": -1}, lapse.Range),
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


def handle(**policy):
    return lambda s: s.handle("q", print, **policy)


NAN = float("nan")
NAMED = [
    # what is called, the error, and what its text has to hold
    (lambda s: s.schedule("x", 1, payload="text"), TypeError, 'payload is bytes: write "...".enc'),
    (lambda s: s.schedule("x", 1, payload=5), TypeError, "payload is bytes-like, not int"),
    (lambda s: s.schedule("x", "5"), TypeError, "delay: .* not str"),
    (lambda s: s.schedule("x", datetime(2030, 1, 1)), TypeError, "schedule_at .*, not datetime"),
    (lambda s: s.schedule("x", NAN), lapse.Range, "delay: nan"),
    (lambda s: s.schedule("x", 4 * 10**9), lapse.Range, "delay: 4000000000 is out of range"),
    (lambda s: s.reschedule("x", NAN), lapse.Range, "delay: nan"),
    (lambda s: s.requeue("x", NAN), lapse.Range, "delay: nan"),
    (lambda s: s.schedule_at("x", "tomorrow"), TypeError, "at: .* not str"),
    (lambda s: s.schedule_at("x", NAN), lapse.Range, "at: .*, not nan"),
    (lambda s: s.schedule_at("x", 6 * 10**9), lapse.Range, "at: .* 100 years .*, not 6000000000"),
    (lambda s: s.schedule_at("x", 10**400), lapse.Range, "at: .*, not 1000"),
    (lambda s: s.schedule_at("x", 1.9e12), lapse.Range, "looks like milliseconds: divide by 1000"),
    (lambda s: s.schedule_at("x", 19 * 10**11), lapse.Range, "at: .* within 100 years from now; "
     "1900000000000 looks like milliseconds: divide by 1000"),
    (lambda s: s.schedule_at("x", 1.9e15), lapse.Range, "looks like microseconds: divide by 1e6"),
    (lambda s: s.schedule_at("x", 19 * 10**17), lapse.Range, "like nanoseconds: divide by 1e9"),
    (lambda s: s.schedule_at("x", datetime(9999, 1, 1, tzinfo=timezone.utc)), lapse.Range,
     r"at: .*, not datetime.datetime\(9999"),
    (lambda s: s.take(timeout="x"), TypeError, "timeout: .* not str"),
    (lambda s: s.cancel_wait("x", NAN), lapse.Range, "timeout: nan"),
    (lambda s: s.close("x"), TypeError, "timeout: .* not str"),
    (lambda s: s.process(-1), lapse.Range, "max: -1"),
    (lambda s: s.process("x"), TypeError, "max is an int, 0 or more, got 'x'"),
    (lambda s: s.orders("dead"), TypeError, "use lapse.State.DEAD"),
    (lambda s: s.orders("nonsense"), TypeError, "lapse.State"),
    (lambda s: s.orders(999), lapse.Invalid, "999 is no lapse.State"),
    (lambda s: s.orders(-1), lapse.Invalid, "-1 is no lapse.State"),
    (lambda s: s.renew("x"), TypeError, "a lapse.Order, or its fence as int, not 'x'"),
    (lambda s: s.renew(5, "x"), TypeError, "lease: .* not str"),
    (lambda s: s.holds("x"), TypeError, "a lapse.Order, or its fence as int, not 'x'"),
    (lambda s: s.handle(5, print), TypeError, "queue's name is a str, not int"),
    (lambda s: s.handler(print), TypeError, r'write @s.handler\("queue"\)'),
    (lambda s: lapse.handler(print), TypeError, r'write @s.handler\("queue"\)'),
    (handle(attempts=5000), lapse.Range, "attempts is 5000: use 0 .* to 4000"),
    (handle(attempts=-(10**30)), lapse.Range, "attempts: -10{30} is out of range"),
    (handle(attempts=0.5), TypeError, "attempts is an int, got 0.5"),
    (handle(backoff=-1), lapse.Range, "backoff: -1 is below 0"),
    (handle(backoff_max="x"), TypeError, "backoff_max: .* not str"),
    (handle(backoff_percent=1), lapse.Range, "backoff_percent is 1: use 0 .*, or 100 to"),
    (handle(jitter_percent=101), lapse.Range, "jitter_percent is 101"),
    (handle(run_limit=NAN), lapse.Range, "run_limit: nan"),
    (handle(expires=-0.5), lapse.Range, "expires: -0.5 is below 0"),
    (handle(rate=-1), lapse.Range, "rate: -1 is below 0"),
    (handle(stuck_after=10**10), lapse.Range, "stuck_after: 10000000000"),
    (lambda s: lapse.Scheduler(5), TypeError, "url is a str, got int"),
    (lambda s: lapse.Scheduler("memory:\0"), lapse.BadUrl, "url holds a NUL"),
    (lambda s: lapse.Scheduler(overflow=5), TypeError, "overflow is .* not 5"),
    (lambda s: lapse.Scheduler(workers="2"), TypeError, "workers is an int, got '2'"),
    (lambda s: lapse.Scheduler(max_pending=-1), lapse.Range, "max_pending: -1"),
    (lambda s: lapse.Scheduler(max_dead=2**64), lapse.Range, "max_dead: 18446744073709551616"),
    (lambda s: lapse.Scheduler(keep=NAN), lapse.Range, "keep: nan"),
    (lambda s: lapse.Scheduler(lease=-1), lapse.Range, "lease: -1 is below 0"),
    (lambda s: lapse.ManualClock("x"), TypeError, "start: .* not str"),
    (lambda s: lapse.ManualClock().advance(-1), lapse.Range, "by: -1 is below 0"),
]


@pytest.mark.parametrize(("call", "error", "text"), NAMED, ids=[row[2] for row in NAMED])
def test_an_error_names_the_argument_and_the_value(story, call, error, text):
    with pytest.raises(error, match=text):
        call(story.s)
    assert story.pending == 0 and story.s.queues() in ([], [""], ["q"])


def test_a_policy_takes_the_ends_of_its_ranges(story):
    for attempts, percent, jitter in [(1, 100, 100), (4000, 100_000, -(2**31)), (0, 0, 0)]:
        story.s.handle("q", print, attempts=attempts, backoff_percent=percent,
                       jitter_percent=jitter)


def test_no_url_means_memory():
    with lapse.Scheduler(None, workers=0) as s:
        assert repr(s).startswith("<lapse.Scheduler memory:")
