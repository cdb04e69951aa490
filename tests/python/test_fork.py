"""After fork the child is empty and works; the parent notices nothing."""

import pytest
from support import SANITIZED, python

pytestmark = pytest.mark.skipif(
    SANITIZED, reason="a child of threads inherits the locks of the sanitizer's allocator"
)

PROGRAM = """
import json, os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import lapse

kind = sys.argv[1]
if kind == "default":
    s = lapse.default_scheduler()
else:
    s = lapse.Scheduler(workers=int(kind))
ran, wanted = [], threading.Event()

def mark(order):
    ran.append((order.id, os.getpid(), order.late))
    if len(ran) >= 10:
        wanted.set()

for i in range(10):
    s.schedule(f"p{i}", 0.1, mark)
s.schedule("far", 3600, mark)
before = set(threading.enumerate())

def child():
    assert s.stats()["pending"] == 0 and s.orders() == []
    assert s.cancel("far") is lapse.Fate.UNKNOWN
    assert not [t for t in threading.enumerate() if t.name.startswith("lapse")]
    ran.clear()
    fired = threading.Event()
    s.schedule("c", 0.01, lambda order: (mark(order), fired.set()))
    assert fired.wait(10)
    time.sleep(0.12)  # sleeps: until the parent's orders would have run here
    assert [r[0] for r in ran] == ["c"], ran
    s.close(5)
    return 0

pids = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = child()
        except BaseException:
            import traceback; traceback.print_exc()
        os._exit(code)
    pids.append(pid)
assert wanted.wait(10), "the parent lost orders"
assert sorted(r[0] for r in ran) == sorted(f"p{i}" for i in range(10))
assert {r[1] for r in ran} == {os.getpid()}
assert s.cancel("far") is lapse.Fate.CANCELLED
for pid in pids:
    assert os.waitpid(pid, 0)[1] == 0
for fd in os.listdir("/proc/self/fd"):
    try: inheritable = os.get_inheritable(int(fd))
    except OSError: continue
    assert int(fd) < 3 or not inheritable, fd
print(json.dumps(max(r[2] for r in ran)))
"""


@pytest.mark.parametrize("kind", ["default", "1", "3"])
def test_p32_fork(kind):
    done = python(PROGRAM, kind)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert 0 <= float(done.stdout) < 5


def test_p32_a_child_that_exits_normally():
    done = python(
        """
        import os, sys, lapse, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        lapse.schedule("p", 3600, print)
        if os.fork() == 0:
            lapse.schedule("c", 3600, print)
            sys.exit(0)
        assert os.wait()[1] == 0
        assert lapse.cancel("p")
        """
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_p32_fork_inside_a_callback():
    done = python(
        """
        import os, lapse, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        pid, ran = [], threading.Event()
        def forks(order):
            child = os.fork()
            if child == 0:
                assert lapse.stats()["pending"] == lapse.stats()["running"] == 0
                done = threading.Event()
                lapse.schedule("c", 0, lambda order: done.set())
                os._exit(0 if done.wait(10) else 1)
            pid.append(child)
            ran.set()
        lapse.schedule("p", 0, forks)
        assert ran.wait(10)
        assert os.waitpid(pid[0], 0)[1] == 0
        """
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_p32_multiprocessing():
    done = python(
        """
        import multiprocessing, os, lapse, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        def work(queue):
            done = threading.Event()
            lapse.schedule("c", 0, lambda order: done.set())
            queue.put(done.wait(10))
        lapse.schedule("p", 3600, print)
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        workers = [context.Process(target=work, args=(queue,)) for _ in range(3)]
        for w in workers: w.start()
        assert [queue.get() for _ in workers] == [True] * 3
        for w in workers: w.join()
        assert [w.exitcode for w in workers] == [0] * 3
        assert lapse.cancel("p")
        """
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_p32_a_claim_does_not_cross_the_fork():
    done = python(
        """
        import os, lapse
        s = lapse.Scheduler(workers=0)
        s.schedule("t", 0)
        claim = s.take(timeout=5)
        if os.fork() == 0:
            try: claim.done()
            except lapse.Error: os._exit(0)
            os._exit(1)
        assert os.wait()[1] == 0
        claim.done()
        assert s.stats()["done"] == 1
        """
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_p32_handlers_and_hooks_cross_the_fork():
    """A server that registers its handlers before it forks its workers (--preload)."""
    done = python(
        """
        import os, threading, lapse, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        ran, dead = threading.Event(), threading.Event()

        def on_dead(info, reason):
            dead.set()

        s = lapse.Scheduler(on_dead=on_dead)

        @s.handler("close", attempts=1)
        def close(order):
            ran.set()
            raise lapse.Reject("no")

        assert threading.active_count() == 1
        s.schedule("parent", 3600, close)
        pids = []
        for n in range(3):
            pid = os.fork()
            if pid == 0:
                assert s.orders() == [] and s.queue_stats("close")["handled"]
                s.schedule("child", 0, close)
                good = ran.wait(10) and dead.wait(10)
                s.handle("close", None)
                good = good and s.get("child").reason is lapse.Reason.REJECTED
                os._exit(0 if good else 1)
            pids.append(pid)
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0
        assert not ran.is_set() and s.cancel("parent")
        s.close()
        """
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
