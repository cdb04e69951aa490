"""The interpreter ends: no hang, no crash, no traceback, whatever is pending."""

import os
import select
import subprocess
import textwrap
import time

import pytest
from support import PATIENCE, every_python, python, rounds

ENDINGS = {
    "falls off its end": ("pass", 0),
    "sys.exit": ("import sys; sys.exit(3)", 3),
    "an exception": ("raise ValueError('on purpose')", 1),
    "os._exit": ("import os; os._exit(4)", 4),
}

SCHEDULES = {
    "default": """
        import lapse
        for i in range(100): lapse.schedule(str(i), i % 6 / 1000, int_of)
        lapse.schedule("z", 3600, int_of)
    """,
    "own": """
        import lapse
        s = lapse.Scheduler(workers=2)
        for i in range(100): s.schedule(str(i), i % 6 / 1000, int_of)
        s.schedule("z", 3600, int_of)
    """,
    "dropped": """
        import lapse
        def drop():
            s = lapse.Scheduler()
            for i in range(100): s.schedule(str(i), i % 6 / 1000, int_of)
        drop()
    """,
}


def asleep(process: subprocess.Popen, start: float) -> float:
    """Seconds for which its main thread neither ran nor waited for a processor: a busy
    machine has none for it."""
    with open(f"/proc/{process.pid}/schedstat") as f:
        ran, waited, _ = f.read().split()
    return time.monotonic() - start - (int(ran) + int(waited)) / 1e9


def timed(program: str, executable: str) -> tuple[int, str, float]:
    """How it ended, what it said, and for how long it slept."""
    start = time.monotonic()
    process = subprocess.Popen([executable, "-c", program], stderr=subprocess.PIPE, text=True)
    end = os.pidfd_open(process.pid)
    while not (over := select.select([end], [], [], 1)[0]) and asleep(process, start) < PATIENCE:
        pass
    slept = asleep(process, start)  # it is still there: nobody has waited for it
    os.close(end)
    if not over:
        process.kill()
    said = process.communicate()[1]
    assert over, f"it hangs: {said}"
    return process.returncode, said, slept


@every_python
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ending", ENDINGS)
def test_p35_the_interpreter_ends(schedule, ending, executable):
    statement, status = ENDINGS[ending]
    program = "\n".join(
        ["def int_of(order): return int(order)", textwrap.dedent(SCHEDULES[schedule]), statement]
    )
    for _ in range(rounds(1, 20, 200)):
        code, said, slept = timed(program, executable)
        assert code == status, said
        assert "Fatal" not in said and ("Traceback" in said) == (status == 1)
        assert slept < 2


def ends_well(program: str, executable: str) -> str:
    for _ in range(rounds(1, 20, 200)):
        done = python(program, executable=executable)
        assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


@every_python
def test_p35_a_running_callback_is_waited_for(executable):
    out = ends_well(
        """
        import lapse, threading, time
        inside = threading.Event()
        def slow(order):
            inside.set()
            time.sleep(0.05)    # sleeps: the callback that the exit has to wait for
            print("finished", flush=True)
        lapse.schedule("slow", 0, slow)
        inside.wait()
        """,
        executable,
    )
    assert out == "finished\n"


@every_python
def test_p35_threads_of_the_host_may_use_it_to_their_last_line(executable):
    out = ends_well(
        """
        import lapse, threading
        lapse.schedule("early", 3600, print)
        def server():
            threading.main_thread().join()
            ran = threading.Event()
            lapse.schedule("late", 0.01, lambda order: ran.set())
            print(ran.wait(10))
        threading.Thread(target=server).start()
        """,
        executable,
    )
    assert out == "True\n"


@every_python
def test_p35_scheduling_at_exit_is_refused(executable):
    out = ends_well(
        """
        import atexit
        def late():
            try: lapse.schedule("x", 1, print)
            except lapse.Closed as error: print("closed")
            try: lapse.Scheduler().schedule("y", 1, print)
            except lapse.Closed as error: print("closed")
            print(lapse.cancel("pending").name)
        atexit.register(late)       # runs after lapse's own: it was registered first
        import lapse
        lapse.schedule("pending", 3600, print)
        """,
        executable,
    )
    assert out == "closed\nclosed\nCANCELLED\n"


@every_python
def test_p35_objects_that_outlive_the_module(executable):
    ends_well(
        """
        import lapse, sys, gc
        class Keeper:
            def __init__(self):
                self.s = lapse.Scheduler()
                self.s.schedule("o", 3600, self.close, payload=b"x")
                self.s.schedule("t", 0)
                self.claim = self.s.take(timeout=5)
            def close(self, order): pass
            def __del__(self):
                self.s.cancel("o")
        keeper = Keeper()
        sys.keeper = keeper
        lapse.keeper = Keeper()
        gc.disable()
        """,
        executable,
    )


@every_python
def test_importing_starts_nothing(executable):
    out = ends_well(
        """
        import threading, os
        before = os.listdir("/proc/self/fd")
        import lapse
        print(threading.active_count(), os.listdir("/proc/self/fd") == before)
        """,
        executable,
    )
    assert out == "1 True\n"
