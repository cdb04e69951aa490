"""Who consumes a queue of a store that may fail, here and in other processes, and what is asked of it
meanwhile."""

import subprocess
import sys
import threading

import lapse
from support import PATIENCE, until


class Consumer:
    """A scheduler with one worker that notes what it runs."""

    def __init__(self, url, queue="q"):
        self.ran, self.lock = [], threading.Lock()
        self.s = lapse.Scheduler(url, workers=1)
        self.s.handle(queue, self.run)

    def run(self, order):
        with self.lock:
            self.ran.append((str(order), order.late, order.fence))

    def ids(self):
        with self.lock:
            return [id for id, _, _ in self.ran]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.s.close()


CONSUMER = """
import lapse, os, sys
s = lapse.Scheduler(sys.argv[1], workers=2)
@s.handler("race", attempts=100)
def close(order):
    os.write(1, b"%s %d\\n" % (order.id.encode(), order.attempt))
os.write(1, b"up\\n")
sys.stdin.read()
s.close()
"""


class Worker:
    """A process that consumes, and tells of each order before it ends."""

    def __init__(self, url, program=CONSUMER):
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.lines, self.thread = [], threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.lines.append(line.split())

    def ran(self):
        return [(words[0].decode(), int(words[1])) for words in list(self.lines) if len(words) == 2]

    def end(self, kill=False):
        if kill:
            self.process.kill()
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.thread.join()
        self.process.stdout.close()


def place(s, name, count, delay):
    results = s.schedule_many([(f"{name}{n}", delay, None, None, "q") for n in range(count)])
    assert all(isinstance(r, int) for r in results), results


def offline(s):
    """Since how many seconds the store cannot be reached."""
    found = [line for line in s.metrics().split("\n") if line.startswith("lapse_offline")]
    return float(found[0].split()[-1])


def try_schedule(s, id, delay=0, queue="q"):
    """Until the store is there again."""

    def done():
        try:
            return s.schedule(id, delay, queue=queue) > 0
        except lapse.Exists:
            return True
        except (lapse.Offline, lapse.Unsure):
            return False

    until(done)
