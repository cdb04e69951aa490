"""Who consumes a queue of a store that may fail, and what is asked of it meanwhile."""

import threading

import lapse
from support import until


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
