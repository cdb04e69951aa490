"""The RabbitMQ store while the broker has an alarm, of its memory or its disk, and takes nothing in.

Nothing here waits for a time: that the alarm has begun, and that it has ended, is told by the broker and
by what `schedule` answers."""

import threading

import lapse
import pytest
from consumer import offline
from support import PATIENCE, of_debian, rounds, until

of_debian("pika")
from rabbitmq_server import Server  # noqa: E402: it needs pika

SERVER = Server

ALARMS = {
    "memory": ("set_vm_memory_high_watermark", ("absolute", "1"), ("0.4",)),
    "disk": ("set_disk_free_limit", ("1000000000000000",), ("20000000",)),
}


class Alarm:
    def __init__(self, server, kind):
        self.server = server
        self.command, self.begin_words, self.end_words = ALARMS[kind]

    def begin(self):
        """The broker has it from now on."""
        self.server.ctl(self.command, *self.begin_words)
        until(lambda: self.server.ctl("eval", "rabbit_alarm:get_alarms().") != "[]", "the alarm")

    def end(self):
        self.server.ctl(self.command, *self.end_words)
        until(lambda: self.server.ctl("eval", "rabbit_alarm:get_alarms().") == "[]", "its end")


@pytest.fixture(params=ALARMS)
def alarm(server, request):
    a = Alarm(server, request.param)
    yield a
    a.end()


class Shop:
    """Orders that run until they are let go, and those who schedule meanwhile."""

    def __init__(self, url, held):
        self.ran, self.lock = [], threading.Lock()
        self.go_on = {"retry": threading.Event(), "done": threading.Event()}
        self.accepted, self.unsure, self.refused = [], [], []
        self.numbers = iter(range(10**6))
        # Neither a lease nor a limit of a call ends because the machine is busy.
        self.s = lapse.Scheduler(f"{url}&lease=4m", workers=held + 2)
        self.s.handle("held", self.run, attempts=5)
        self.s.handle("q", self.note)

    def note(self, order):
        with self.lock:
            self.ran.append((str(order), order.attempt))

    def run(self, order):
        self.note(order)
        if order.attempt == 1:
            assert self.go_on[str(order).split("-")[0]].wait(2 * PATIENCE)
            if order.startswith("retry"):
                raise lapse.Retry(0.05)

    def schedule(self):
        """One more; false when it was refused."""
        id = f"o{next(self.numbers)}"
        try:
            assert self.s.schedule(id, 0, queue="q") > 0
            self.accepted.append(id)
        except lapse.Unsure:
            self.unsure.append(id)
        except lapse.System as error:
            assert "takes nothing in" in str(error)
            self.refused.append(id)
            return False
        return True

    def schedule_many(self, count):
        """At once: the broker reads the first, and leaves the others in the socket."""
        ids = [f"o{next(self.numbers)}" for _ in range(count)]
        results = self.s.schedule_many([(id, 0, None, None, "q") for id in ids])
        answers = {int: self.accepted, lapse.Unsure: self.unsure, lapse.System: self.refused}
        for id, result in zip(ids, results, strict=True):
            answers[type(result)].append(id)

    def done(self):
        return self.s.stats()["done"]

    def ids(self):
        with self.lock:
            return [id for id, _ in self.ran]


@pytest.mark.parametrize("first", ["orders", "retries"])
def test_what_is_blocked_is_refused_or_taken_in_once(url, alarm, first):
    """Of what is published together after the alarm began the broker reads the first. The others lie in
    the socket: whether they were done is not known. After that all is refused at once. What runs ends,
    what is due is delivered."""
    held = [f"{kind}-{n}" for kind in ("retry", "done") for n in range(3)]
    shop = Shop(url, len(held))
    with shop.s as s:
        for id in held:
            s.schedule(id, 0, queue="held")
        until(lambda: sorted(shop.ids()) == sorted(held))
        assert shop.schedule()
        s.schedule("due", 1.5, queue="q")  # It waits in the broker, and falls due there.
        alarm.begin()
        if first == "retries":
            shop.go_on["retry"].set()
        else:
            shop.schedule_many(20)
        until(lambda: not shop.schedule(), "the refusal")
        for _ in range(rounds(20, 20, 1000)):
            assert not shop.schedule()
        assert offline(s) == 0, "it can be reached"
        shop.go_on["done"].set()
        until(lambda: "due" in shop.ids(), "what is due")
        until(lambda: shop.done() >= len(shop.accepted) + 1 + 3, "the end of what runs")
        shop.go_on["retry"].set()
        assert not shop.schedule()
        assert [id for id in shop.ids() if id in shop.refused] == []
        alarm.end()
        until(shop.schedule, "the end of the refusals")
        once = [*shop.accepted, *shop.unsure, "due"]
        until(lambda: shop.done() >= len(once) + len(held))
        assert s.schedule("last", 0, queue="q") > 0
        until(lambda: "last" in shop.ids())
        until(lambda: s.stats()["pending"] == s.stats()["running"] == 0)
        assert s.stats()["dead"] == s.stats()["lost"] == 0
    again = [(id, 2) for id in held if id.startswith("retry")]
    assert sorted(shop.ran) == sorted([(id, 1) for id in [*once, *held, "last"]] + again)
    print(f"accepted {len(shop.accepted)}, unsure {len(shop.unsure)}, refused {len(shop.refused)}")
