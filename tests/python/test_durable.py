"""A durable store from Python: orders that outlive their process, and handlers with names."""

import datetime
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time

import lapse
import pytest
from lapse import Fate, Reason, State
from support import (
    PATIENCE,
    SANITIZED,
    Story,
    fine,
    ids,
    in_threads,
    python,
    rounds,
    until,
    until_asleep,
)

forks = pytest.mark.skipif(
    SANITIZED,
    reason="ThreadSanitizer ends a forked child that starts a thread again, and one of "
    "AddressSanitizer may wait for ever for a lock that its allocator had in the parent",
)


# -- Schedule in one process, run in another ------------------------------------------------


def test_what_schedule_answered_survives_kill_9(url, s):
    program = """
        import lapse, os, signal, sys, threading
        s = lapse.Scheduler(sys.argv[1])
        def place(n):
            for i in range(20):
                s.schedule(f"{n}-{i}", 60, queue="close", payload=b"%d" % i)
        threads = [threading.Thread(target=place, args=(n,)) for n in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert s.cancel("3-3") and s.reschedule("4-4", 3600)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    assert python(program, url).returncode == -signal.SIGKILL
    expected = {f"{n}-{i}" for n in range(8) for i in range(20)} - {"3-3"}
    assert set(ids(s)) == expected
    assert s.get("4-4").remaining > 3000 and s.get("5-7").payload == b"7"


def test_p61_a_consumer_that_nobody_schedules_for(url):
    """What fell due while no process was there is delivered, and what others place later."""
    fine("""
        with lapse.Scheduler(sys.argv[1]) as s:
            for n in range(100):
                s.schedule(f"o{n}", 0.1, queue="close")
        """, url)
    time.sleep(0.6)  # sleeps: every process is gone, and the orders are overdue
    late = fine("""
        late = []
        s = lapse.Scheduler(sys.argv[1])
        @s.handler("close")
        def close(order): late.append(order.late)
        while len(late) < 100: time.sleep(0.001)  # sleeps: between two looks
        print(min(late), len(late))
        s.close()
        """, url)
    assert float(late.split()[0]) >= 0.4 and late.split()[1] == "100"


def test_a_handler_that_had_nothing_to_do_hears_of_others(url, s):
    """Its workers run although nothing was pending when it was registered."""
    ran = []
    with lapse.Scheduler(url) as consumer:
        consumer.handle("close", ran.append)
        fine("""
            with lapse.Scheduler(sys.argv[1]) as s:
                for n in range(5): s.schedule(f"o{n}", 0, queue="close")
            """, url)
        until(lambda: len(ran) == 5)
    assert sorted(ran) == [f"o{n}" for n in range(5)] and ids(s) == []


def test_orders_of_queues_that_nobody_here_handles_are_left(url, s):
    ran = []
    with lapse.Scheduler(url) as consumer:
        consumer.handle("close", ran.append)
        s.schedule_many([(f"o{n}", 0, None, None, "ship" if n % 2 else "close") for n in range(6)])
        until(lambda: len(ran) == 3)
    assert ids(s) == ["o1", "o3", "o5"] and {info.attempt for info in s.orders()} == {0}


def test_closing_says_nothing_of_orders_that_will_not_run(url, caplog):
    caplog.set_level("INFO")
    with lapse.Scheduler(url) as one:
        one.schedule("a", 60, queue="close")
    assert "will not run" not in caplog.text


# -- Handlers have names --------------------------------------------------------------------


def test_a_registered_function_stands_for_its_queue(s):
    @s.handler("close")
    def close(order):
        raise AssertionError

    s.schedule("a", 60, close)
    s.schedule("b", 60, close, queue="close")
    assert s.schedule_many([("c", 60, close)])[0] > 0
    assert {info.id: info.queue for info in s.orders()} == dict.fromkeys("abc", "close")


def test_an_unregistered_callback_is_refused(s):
    def close(order):
        raise AssertionError

    with pytest.raises(lapse.Unsupported, match="close.* register the function with handle"):
        s.schedule("a", 60, close)
    with pytest.raises(lapse.Unsupported):
        s.schedule_at("a", time.time(), lambda order: None, queue="close")
    with pytest.raises(TypeError, match="callable"):
        s.schedule("a", 60, "close")
    s.handle("close", close)
    with pytest.raises(lapse.Unsupported, match="no such queue"):
        s.schedule("a", 60, close, queue="another")
    refused, fine_one = s.schedule_many([("a", 60, print), ("b", 60, close)])
    assert isinstance(refused, lapse.Unsupported) and fine_one > 0
    s.handle("close", None)
    with pytest.raises(lapse.Unsupported):
        s.schedule("a", 60, close)
    assert ids(s) == ["b"]


# -- Take, poll, claims -----------------------------------------------------------------------


def test_claims(url, s):
    with lapse.Scheduler(url, workers=0) as other:
        for n in range(5):
            s.schedule(f"o{n}", 0, queue="q", payload=b"%d" % n)
        taken = [s.take("q", PATIENCE) for _ in range(5)]
        assert sorted(taken) == [f"o{n}" for n in range(5)] and other.poll("q") is None
        assert {claim.payload for claim in taken} == {b"%d" % n for n in range(5)}
        done, retried, rejected, given, dropped = taken
        assert done.holds() and done.renew(60) is None
        done.done()
        retried.retry(0)
        rejected.reject("no such account")
        given.give_back()
        name = str(dropped)
        del taken, dropped
        again = {str(claim): claim for claim in (other.take("q", PATIENCE) for _ in range(3))}
        assert {k: c.attempt for k, c in again.items()} == {str(retried): 2, str(given): 1, name: 1}
        assert not done.held
        for claim in again.values():
            with claim:
                pass
        assert [(info.id, info.reason) for info in s.orders(State.DEAD)] == [
            (str(rejected), Reason.REJECTED)
        ]
        s.handle("handled", print)
        with pytest.raises(lapse.Mixed):
            s.poll("handled")


def test_take_is_woken_by_another_process(url, s):
    placed = threading.Thread(target=fine, args=("""
        with lapse.Scheduler(sys.argv[1]) as s: s.schedule("a", 0, queue="q")
        """, url))
    placed.start()
    with s.take("q", PATIENCE) as claim:
        assert claim == "a"
    placed.join()


def test_exit_gives_claims_back(url, s):
    """The next consumer does not have to wait for the lease of 30 seconds to end."""
    fine("""
        s = lapse.Scheduler(sys.argv[1], workers=0)
        s.schedule("a", 0, queue="q")
        claim = s.take("q")
        sys.modules["kept"] = [s, claim]  # not even the end of the interpreter drops it before
        """, url)
    with s.take("q", 5) as claim:
        assert (claim, claim.attempt) == ("a", 1)


def test_exit_waits_for_the_callback_that_runs(url, s):
    fine("""
        s, started = lapse.Scheduler(sys.argv[1]), threading.Event()
        @s.handler("q")
        def handle(order):
            started.set()
            time.sleep(0.1)  # sleeps: the interpreter ends meanwhile
        s.schedule("a", 0, handle)
        started.wait()
        """, url)
    assert s.get("a") is None


# -- Fork -----------------------------------------------------------------------------------------


@forks
def test_p32_a_child_connects_anew(url, s):
    fine("""
        import logging, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        logging.getLogger("lapse").setLevel("ERROR")  # it warns of this: see below
        s = lapse.Scheduler(sys.argv[1], workers=0)
        working = lapse.Scheduler(sys.argv[1])
        @s.handler("close")
        def close(order): ran.append(order.id)
        @working.handler("ship")
        def ship(order): shipped.add(order.id)
        ran, shipped = [], set()
        s.schedule("parent's", 3600, close)
        working.schedule("parent ships", 3600, ship)
        held = lapse.Scheduler(sys.argv[1], workers=0)
        held.schedule("taken", 0, queue="q")
        claim = held.take("q")
        for n in range(3):
            if os.fork() == 0:
                code = 1
                try:
                    assert s.get("parent's").state is lapse.State.PENDING
                    try: claim.done()
                    except lapse.Stale: pass
                    else: raise AssertionError("the claim is the parent's")
                    s.schedule(f"child {n}", 0, close)
                    working.schedule(f"child {n} ships", 0, ship)
                    until = time.monotonic() + 20
                    while s.get(f"child {n}") or s.get(f"child {n} ships"):  # whoever runs it
                        assert time.monotonic() < until
                        s.process()
                        time.sleep(0.001)  # sleeps: between two looks
                    assert not ran or all(i.startswith("child") for i in ran)
                    s.close(); working.close()
                    code = 0
                except BaseException:
                    import traceback; traceback.print_exc()
                os._exit(code)
        assert [os.wait()[1] for n in range(3)] == [0] * 3
        assert claim.holds()
        claim.done()
        assert s.cancel("parent's") and working.cancel("parent ships")
        """, url)
    assert ids(s) == []


@forks
@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        ("s.handle('close', print)", 1),  # as under gunicorn --preload, with a decorator at import
        ("s.schedule('a', 3600, queue='close')", 0),
        ("s.handle('close', print); s.close()", 0),
        ("s.close(); s = lapse.Scheduler(); s.schedule('a', 3600, print)", 0),
    ],
)
def test_a_fork_beside_callbacks_is_told_once(url, prepare, told):
    """A lock that a callback holds stays locked in the child, and nothing there would say so."""
    said = fine("""
        import logging, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
        s = lapse.Scheduler(sys.argv[1])
        exec(sys.argv[2])
        sys.stdout.flush()
        for n in range(3):
            if os.fork() == 0:
                os._exit(0)
            os.wait()
        s.close()
        """, url, prepare)
    assert len(said.splitlines()) == told, said
    assert said.count("lapse WARNING this process forks while workers of its sqlite Sched") == told


# -- Errors ---------------------------------------------------------------------------------------


def test_errors_of_durable_stores(url, tmp_path):
    for name in ("Offline", "BadStore", "Unsure"):
        assert issubclass(getattr(lapse, name), lapse.Error)
        assert name in lapse.__all__ and name in lapse.Scheduler.__doc__
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"this is no database, but a letter. " * 300)
    with pytest.raises(lapse.BadStore):
        lapse.Scheduler(f"sqlite:///{junk}")
    with pytest.raises(lapse.BadUrl, match="make it first"):
        lapse.Scheduler(f"sqlite:///{tmp_path}/nowhere/orders.db")
    with pytest.raises(lapse.BadUrl):
        lapse.Scheduler(url + "?tick=1ms")


def test_who_cannot_have_the_store_in_time_is_told(url):
    with lapse.Scheduler(url + "?busy=50ms", workers=0) as s, locked(url):
        with pytest.raises(lapse.Timeout):
            s.schedule("a", 60, queue="q")
    with lapse.Scheduler(url, workers=0) as s:
        assert ids(s) == []


# -- The GIL --------------------------------------------------------------------------------------


class locked:
    """The database belongs to this thread for a while: whoever writes, waits."""

    def __init__(self, url):
        self.path = url.removeprefix("sqlite:///").partition("?")[0]

    def __enter__(self):
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("BEGIN EXCLUSIVE")

    def __exit__(self, *error):
        self.db.execute("ROLLBACK")
        self.db.close()


CALLS = {
    "schedule": lambda s, claim: s.schedule("new", 60, queue="q"),
    "schedule_at": lambda s, claim: s.schedule_at("new", time.time() + 60, queue="q"),
    "schedule_many": lambda s, claim: s.schedule_many([("new", 60, None, None, "q")]),
    "cancel": lambda s, claim: s.cancel("far"),
    "cancel_wait": lambda s, claim: s.cancel_wait("far"),
    "reschedule": lambda s, claim: s.reschedule("far", 90),
    "get": lambda s, claim: s.get("far"),
    "orders": lambda s, claim: s.orders(),
    "stats": lambda s, claim: s.stats(),
    "queue_stats": lambda s, claim: s.queue_stats("q"),
    "queues": lambda s, claim: s.queues(),
    "metrics": lambda s, claim: s.metrics(),
    "pause": lambda s, claim: (s.pause("q"), s.resume("q")),
    "handle": lambda s, claim: s.handle("handled", print),
    "take": lambda s, claim: s.take("other", 0.05),
    "poll": lambda s, claim: s.poll("other"),
    "settle": lambda s, claim: claim.done(),
    "renew": lambda s, claim: claim.renew(),
    "holds": lambda s, claim: claim.holds(),
    "requeue": lambda s, claim: s.requeue("dead"),
    "purge": lambda s, claim: s.purge(),
    "timeout": lambda s, claim: s.timeout(),
    "process": lambda s, claim: s.process(),
    "stop": lambda s, claim: s.stop(),
    "close": lambda s, claim: s.close(),
    "repr": lambda s, claim: repr(s),
}


@pytest.mark.parametrize("name", CALLS)
def test_who_waits_for_the_store_holds_up_no_thread(url, name):
    """Only this thread can let the database go: a call that kept the GIL would end in Timeout."""
    s = lapse.Scheduler(url, workers=0)
    s.schedule_many([("far", 60, None, None, "q"), ("held", 0, None, None, "q")])
    s.schedule("dead", 0, queue="d")
    s.take("d", PATIENCE).reject("no such account")
    claim = s.take("q", PATIENCE)
    calls, errors = [lambda: s.schedule("first", 60, queue="q"), lambda: CALLS[name](s, claim)], []

    def call(function):
        try:
            function()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(function,)) for function in calls]
    with locked(url):
        for thread in threads:
            thread.start()
            until_asleep(thread)
        held_up = name in ("settle", "renew", "holds", "stop", "repr", "pause", "handle")
        assert held_up or threads[0].is_alive()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert errors == []
    s.close()


# -- Named cases ----------------------------------------------------------------------------------


def test_p19_what_is_stored_is_an_instant(url, s):
    program = """
        os.environ["TZ"] = sys.argv[2]
        time.tzset()
        with lapse.Scheduler(sys.argv[1], workers=0) as s:
            if s.get("a") is None:
                print(time.time())
                s.schedule("a", 1800, queue="q")
            print(s.get("a").due, s.get("a").remaining)
        """
    first = fine(program, url, "Europe/Berlin").split()
    placed, due = float(first[0]), float(first[1])
    assert 1800 <= due - placed < 1800 + PATIENCE
    for zone in ("America/New_York", "Asia/Shanghai"):
        seen = fine(program, url, zone).split()
        # Not hours away. A process that is held up between two clocks is a little off.
        assert float(seen[0]) == pytest.approx(due, abs=PATIENCE)
        assert 1700 < float(seen[1]) <= 1800
    with pytest.raises(lapse.Invalid, match="no time zone"):
        s.schedule_at("b", datetime.datetime(2026, 3, 29, 2, 30), queue="q")


def test_p56_one_bad_order_does_not_hold_back_the_others(s):
    orders = [(f"o{n}", 60, None, None, "q") for n in range(100)]
    orders[37] = ("o" * 256, 60, None, None, "q")
    made = s.schedule_many(orders)
    assert [n for n, result in enumerate(made) if not isinstance(result, int)] == [37]
    assert isinstance(made[37], lapse.BadId) and len(ids(s)) == 99
    del orders[37]
    assert all(isinstance(result, lapse.Exists) for result in s.schedule_many(orders))
    assert len(ids(s)) == 99


WORKER = """
    import lapse, os, signal, sys, time
    s = lapse.Scheduler(sys.argv[1] + "?lease=500ms", workers=int(sys.argv[2]))
    log = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    def look():
        while True:
            try: return s.stats()
            except lapse.Unsure: pass  # on a busy machine a quarter of the lease is soon over
    def handle(order):
        os.write(log, f"{order} {order.attempt}\\n".encode())  # in one piece: two threads do it
        if order.id == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        if order.id == "after" and order.attempt == 1:
            look()  # the claim is in the store, the settlement never is
            os.kill(os.getpid(), signal.SIGKILL)
    s.handle("q", handle, attempts=10)  # so often may a kill hit one that is innocent
    s.handle("p", handle, attempts=3)
    def is_over(now):
        return not now["pending"] and not now["running"]
    until = time.monotonic() + 20
    while not is_over(look()) and time.monotonic() < until:
        time.sleep(0.005)  # sleeps: between two looks
    s.close()
    """


def supervise(url, log, most):
    """Start workers until one ends by itself; how many were killed."""
    for killed in range(most + 1):
        done = python(WORKER, url, "2", str(log))
        if done.returncode == 0:
            return killed
        assert done.returncode == -signal.SIGKILL, done.stderr
    raise AssertionError("they are killed for ever")


def test_p57_killed_between_claim_and_settlement(url, s, tmp_path):
    log, count = tmp_path / "log", 50
    s.schedule_many([(f"o{n}", 0, None, None, "q") for n in range(count)])
    s.schedule("after", 0, queue="q")
    assert supervise(url, log, 1) == 1
    runs = log.read_text().split("\n")[:-1]
    assert {run.split()[0] for run in runs} == {"after", *(f"o{n}" for n in range(count))}
    assert "after 1" in runs and "after 2" in runs
    assert ids(s, State.PENDING | State.RUNNING | State.DEAD) == []
    often = [run.split()[0] for run in runs]
    assert max(often.count(name) for name in set(often)) == 2  # 1 + the kills


def test_p63_a_callback_that_kills_its_worker(url, s, tmp_path):
    log = tmp_path / "log"
    s.schedule("poison", 0, queue="p")
    s.schedule_many([(f"g{n}", 0, None, None, "q") for n in range(30)])
    assert supervise(url, log, 3) == 3
    runs = log.read_text().split("\n")[:-1]
    assert [run for run in runs if run.startswith("poison")] == [f"poison {n}" for n in (1, 2, 3)]
    assert {run.split()[0] for run in runs} == {"poison", *(f"g{n}" for n in range(30))}
    (letter,) = s.orders(State.DEAD)
    assert (letter.id, letter.reason) == ("poison", Reason.LOST)
    assert ids(s, State.PENDING | State.RUNNING) == []


def test_p59_who_lost_the_lease_cannot_settle(url, s):
    with lapse.Scheduler(url + "?lease=100ms", workers=0) as slow:
        s.schedule("a", 0, queue="q")
        first = slow.take("q", PATIENCE)
        second = s.take("q", PATIENCE)
        assert (second, second.attempt) == ("a", first.attempt + 1) and second.fence > first.fence
        assert not first.holds() and not slow.holds(first.fence)
        with pytest.raises(lapse.Stale):
            first.renew(1)
        with pytest.raises(lapse.Stale):
            first.done()
        assert s.get("a").state is State.RUNNING and second.holds()
        second.done()
        assert s.get("a") is None


def test_p59_a_callback_holds_its_order_beyond_the_lease(url, s):
    runs, go, started = [], threading.Event(), threading.Event()

    def handle(order):
        runs.append(order.attempt)
        started.set()
        go.wait(PATIENCE)

    with lapse.Scheduler(url + "?lease=200ms") as one, lapse.Scheduler(url) as other:
        one.handle("q", handle)
        s.schedule("a", 0, queue="q")
        assert started.wait(PATIENCE)
        other.handle("q", handle)
        time.sleep(0.7)  # sleeps: the lease would have ended three times
        go.set()
        until(lambda: s.get("a") is None)
    assert runs == [1]


def test_p70_paid_and_timed_out_at_the_same_instant(url):
    count, lock = rounds(200, 1000, 10_000), threading.Lock()
    status, stock, answers = dict.fromkeys(range(count), "open"), [0], {}

    def change(number, to):
        with lock:
            if status[number] != "open":
                return False
            status[number] = to
            return True

    with lapse.Scheduler(url, workers=4) as s:

        @s.handler("close")
        def close(order):
            if change(int(order), "closed"):
                with lock:
                    stock[0] += 1

        def pay(worker):
            for number in range(worker, count, 4):
                paid = change(number, "paid")
                answers[number] = (paid, s.cancel(str(number)))

        s.schedule_many([(str(n), 0.05, None, None, "close") for n in range(count)])
        time.sleep(0.05)  # sleeps: the orders fall due while they are paid
        in_threads(4, pay)
        until(lambda: not s.orders(State.PENDING | State.RUNNING))
    assert set(status.values()) <= {"paid", "closed"}
    assert stock[0] == list(status.values()).count("closed")
    for number, (paid, fate) in answers.items():
        assert paid == (status[number] == "paid")
        assert paid or fate is not Fate.CANCELLED


def test_p71_delivered_three_times_and_closed_once(url):
    keys, returned = [], []
    with lapse.Scheduler(url, on_error=lambda order, error: None) as s:

        @s.handler("close", attempts=3, backoff=0.001, jitter_percent=-1)
        def close(order):
            key = (order.id, order.generation)
            if key not in keys:
                returned.append(key)
            keys.append(key)
            if order.attempt < 3:
                raise ConnectionError("the answer was lost")

        s.schedule("a", 0, close)
        until(lambda: len(keys) == 3 and s.get("a") is None)
        assert len(set(keys)) == 1 == len(returned) and s.orders(State.DEAD) == []


def test_p72_payment_after_closing(url):
    kept = url + "?keep=120s"
    with lapse.Scheduler(kept) as s:
        s.handle("close", lambda order: None)
        s.schedule("closed", 0, queue="close")
        s.schedule("later", 60, queue="close")
        until(lambda: (info := s.get("closed")) and info.state is State.DONE)
    out = fine("""
        with lapse.Scheduler(sys.argv[1], workers=0) as s:
            print(s.cancel("closed").name, bool(s.cancel("closed")), s.get("closed").ended)
            print(s.cancel("nobody's").name, s.reschedule("later", 300).name)
            print(s.reschedule("closed", 300).name)
        """, kept).split()
    assert out[:2] == ["DONE", "False"] and time.time() - float(out[2]) < 2 * PATIENCE
    assert out[3:] == ["UNKNOWN", "RESCHEDULED", "DONE"]


def test_p77_overdue_is_not_dropped(url):
    before = Story(url)
    late = {"two seconds": 2, "an hour": 3600, "thirty days": 30 * 86400}
    now = 40 * 86400
    for name, seconds in late.items():
        before.s.schedule(name, now - seconds, queue="close")
    before.s.schedule("expired", now - 3600, queue="brief")
    deaths = []
    before.s.on_dead = lambda info, reason: deaths.append((info.id, reason))
    before.s.handle("brief", before.mark, expires=60)
    before.s.handle("close", before.mark)
    for n in range(20):
        before.s.schedule(f"n{n}", now + 60, queue="close")
    assert sorted(before.at(now)) == sorted(late)
    assert {o.id: o.late for o in before.ran} == {k: pytest.approx(v) for k, v in late.items()}
    assert deaths == [("expired", Reason.EXPIRED)]
    assert len(before.at(now + 60)) == 20 and before.pending == 0


def test_ctrl_c_ends_a_wait(url):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import lapse, sys
            with lapse.Scheduler(sys.argv[1], workers=0) as s:
                print("waits", flush=True)
                try: s.take("q")
                except KeyboardInterrupt: print("interrupted")
            """), url],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "waits\n"
    until_asleep(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE)[0] == "interrupted\n"
    assert process.returncode == 0
