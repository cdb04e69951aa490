"""The RabbitMQ store from Python, by itself: it schedules, delivers, retries and dead-letters."""

import random
import subprocess
import sys
import threading
import time

import lapse
import pytest
import server_cases
from consumer import CONSUMER, Consumer, Worker
from private_server import start_and_be_killed
from support import PATIENCE, TIER, in_threads, of_debian, python, rounds, until

pika = of_debian("pika")
from rabbitmq_server import Article, Server, prefix_of  # noqa: E402: it needs pika

SERVER = Server


def spread(late):
    late = sorted(late)
    return f"late by {late[len(late) // 2] * 1e3:.0f} ms in the middle, {late[-1] * 1e3:.0f} at most"


# -- Delays ---------------------------------------------------------------------------------


DELAYS = [10, 1, 2, 3, 5]  # seconds, in this order; a soak waits as long as that


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_p66_a_long_delay_blocks_short_ones_in_the_articles_queue_and_not_here(server, url, kind):
    second = rounds(0.3, 0.3, 1)
    article = Article(server, f"article-{prefix_of(url)}", kind)
    with Consumer(url) as c:
        for n in DELAYS:
            article.schedule(str(n), n * second)
            c.s.schedule(str(n), n * second, queue="q")
        theirs = article.in_thread()
        theirs.start()
        until(lambda: len(c.ran) == len(DELAYS))
        theirs.join()
    ours = {id: late for id, late, _ in c.ran}
    for n in DELAYS:
        print(f"{n * second:4} s: the article's {theirs.late[str(n)]:6.3f} s late, ours {ours[str(n)]:6.3f}")
        # All wait for the first, however little they have to.
        assert theirs.late[str(n)] >= article.due["10"] - article.due[str(n)] - 0.01
        assert ours[str(n)] >= 0
        if n < 10:
            assert ours[str(n)] < theirs.late[str(n)]
    if TIER == "soak":
        assert max(ours.values()) < 1 and theirs.late["1"] > 8.5  # 9 s, less what it took to publish


def test_p66_random_delays_are_each_late_by_themselves_only(url):
    count, longest = rounds(100, 300, 1000), rounds(1, 4, 60)
    luck = random.Random(66)
    with Consumer(url) as c:
        began = time.monotonic()
        orders = {f"o{n}": luck.uniform(longest / 60, longest) for n in range(count)}
        results = c.s.schedule_many([(id, delay, None, None, "q") for id, delay in orders.items()])
        assert all(isinstance(r, int) for r in results)
        while len(c.ran) < count:
            before = len(c.ran)
            until(lambda n=before: len(c.ran) > n)
        took = time.monotonic() - began
    assert sorted(c.ids()) == sorted(orders)
    late = [late for _, late, _ in c.ran]
    print(spread(late))
    assert min(late) >= 0
    # None waits for the longest, as in one queue most would.
    assert sorted(late)[count // 2] < longest / 4 + took / 4
    if TIER == "soak":
        assert max(late) < 1 and sorted(late)[count // 2] < 0.3


def test_p14_delays_beyond_the_brokers_limits_are_parked_with_their_due_time(server, url, s):
    """2^32 ms are 49.7 days: none of these may come now."""
    days = [24, 26, 49, 51, 400, 36525]
    wall = time.time()
    for n in days:
        assert s.schedule(f"d{n}", n * 86400, queue="q") > 0
    with Consumer(url) as c:
        s.schedule("now", 0, queue="q")
        until(lambda: c.ids() == ["now"])
        time.sleep(rounds(1, 3, 60))  # sleeps: as long as the case says that none comes
        assert c.ids() == ["now"]
    parked = {}

    def all_are_parked():
        """The broker's figures are some seconds old."""
        for name, (ready, held) in server.queues(
            "messages_ready", "messages_unacknowledged"
        ).items():
            if not name.startswith(prefix_of(url) + "."):
                continue
            assert held == "0", name
            if int(ready):
                found = server.messages(name)
                parked.update({p.message_id: p.headers["lapse-due"] for p, _ in found})
        return sorted(parked) == sorted(f"d{n}" for n in days)

    until(all_are_parked)
    for n in days:
        assert 0 <= parked[f"d{n}"] / 1e9 - wall - n * 86400 < PATIENCE


def test_p58_nothing_is_held_before_it_is_due(server, url):
    """Three consumers, and a lease far shorter than the delay, which lasts for some looks."""
    began = time.monotonic()
    server.queues("messages_unacknowledged")
    delay = rounds(10, 10, 20) + 4 * (time.monotonic() - began)
    consumers = [Consumer(url + "&lease=1s") for _ in range(3)]
    with lapse.Scheduler(url, workers=0) as s:
        due = time.monotonic() + delay
        s.schedule("o", delay, queue="q")
    looks = 0
    while looks == 0 or time.monotonic() < due - 3:
        rows = server.queues("messages_unacknowledged").items()
        held = [n for name, (n,) in rows if name.startswith(prefix_of(url) + ".")]
        if time.monotonic() >= due:
            break  # What it saw may be due.
        looks += 1
        assert held and set(held) == {"0"}
    assert looks > 0
    until(lambda: sum(len(c.ran) for c in consumers) == 1)
    assert min(late for c in consumers for _, late, _ in c.ran) >= 0
    for c in consumers:
        c.s.close()
    assert sum(len(c.ran) for c in consumers) == 1


# -- Ids and payloads -----------------------------------------------------------------------------


def test_p52_an_id_with_a_nul_is_refused_and_a_payload_keeps_every_byte(url, s):
    payloads = {
        "bytes": bytes(range(256)) * 3,
        "café \udcff {x}:#.*": b"\0\x80\xff",
        "x" * 255: b"",
        "130775545883395173": b"130775545883395174",
    }
    for id in ("a\0b", "a\0c"):
        with pytest.raises(lapse.BadId):
            s.schedule(id, 0, queue="q")
    with pytest.raises(lapse.Invalid):
        s.schedule("a", 0, queue="q\0")
    for id, payload in payloads.items():
        s.schedule(id, 0, queue="q #.*%é", payload=payload)
    seen = {}
    with lapse.Scheduler(url, workers=2) as consumer:

        @consumer.handler("q #.*%é", attempts=2, backoff=0.001)
        def handle(order):
            if order.attempt == 1:
                raise lapse.Retry(0)  # Once more through the broker.
            seen[order.id] = order.payload, order.queue

        until(lambda: len(seen) == len(payloads))
    assert seen == {id: (payload, "q #.*%é") for id, payload in payloads.items()}


def test_p56_one_bad_order_holds_back_no_other(url):
    with Consumer(url) as c:
        orders = [(f"o{n}", 0, None, None, "q") for n in range(100)]
        orders[37] = ("x" * 256, 0, None, None, "q")
        results = c.s.schedule_many(orders)
        assert isinstance(results[37], lapse.BadId)
        assert all(isinstance(r, int) for n, r in enumerate(results) if n != 37)
        until(lambda: len(c.ran) == 99)
        assert sorted(c.ids()) == sorted(f"o{n}" for n in range(100) if n != 37)


# -- Consumers ------------------------------------------------------------------------------------


def test_threads_schedule_and_workers_run(url):
    with lapse.Scheduler(url, workers=4) as s:
        server_cases.threads_schedule_and_workers_run(s)


def test_asyncio_and_another_process(url):
    server_cases.asyncio_and_another_process(url)


def test_p57_workers_that_are_killed_lose_nothing(url):
    """And what they did not hold does not run twice."""
    orders, kills = rounds(200, 1000, 10000), rounds(2, 4, 50)
    with lapse.Scheduler(url, workers=0) as s:
        for i in range(0, orders, 500):
            batch = range(i, min(i + 500, orders))
            s.schedule_many([(f"o{n}", 0, None, None, "race") for n in batch])
    every, workers = [], [Worker(url) for _ in range(4)]
    every += workers

    def ran():
        return [run for w in every for run in w.ran()]

    for n in range(kills):
        enough = (n + 1) * orders // (2 * kills)
        until(lambda least=enough: len({id for id, _ in ran()}) >= least)
        workers[n % 4].end(kill=True)
        workers[n % 4] = Worker(url)
        every.append(workers[n % 4])
    while len(done := {id for id, _ in ran()}) < orders:
        until(lambda n=len(done): len({id for id, _ in ran()}) > n)
    for w in workers:
        w.end()
    assert done == {f"o{n}" for n in range(orders)}
    again = len(ran()) - orders
    print(f"{again} runs more than once, of {kills} workers killed with two threads each")
    # What a worker had ended and the broker had not heard of yet is in it.
    assert again <= kills * 100


def test_p59_who_has_lost_its_link_settles_nothing(server, url, caplog):
    """The second delivery has a later fence, and its settlement counts."""
    proxy = server.proxy()
    entered, leave, holds = threading.Event(), threading.Event(), []
    slow = lapse.Scheduler(f"{proxy.url}?prefix={prefix_of(url)}", workers=1)
    fences = {}

    def run_slowly(order):
        fences["slow"] = order.fence
        entered.set()
        assert leave.wait(PATIENCE)
        holds.append(slow.holds(order))
        raise lapse.Reject("the loser's word")

    slow.handle("q", run_slowly, attempts=5)
    slow.schedule("o", 0, queue="q")
    assert entered.wait(PATIENCE)
    proxy.refuse()
    with Consumer(url) as c:
        until(lambda: c.ids() == ["o"])
        assert c.ran[0][2] > fences["slow"]
        leave.set()
        until(lambda: holds == [False])
        proxy.accept()
        until(lambda: slow.stats()["offline"] == 0)
        assert slow.stats()["dead"] == 0 and c.ids() == ["o"]
    slow.close()
    proxy.close()
    assert server.queues("messages")[f"{prefix_of(url)}.dead"] == ["0"]


def test_p59_a_callback_that_outlasts_its_lease_is_not_run_again(url):
    """It is renewed as long as it runs."""
    ran, leave = [], threading.Event()

    def close(order):
        ran.append(order.attempt)
        assert leave.wait(PATIENCE)

    first, second = (lapse.Scheduler(url + "&lease=1s", workers=1) for _ in range(2))
    for s in (first, second):
        s.handle("q", close)
    first.schedule("o", 0, queue="q")
    until(lambda: ran == [1])
    assert not leave.wait(3)
    leave.set()
    until(lambda: first.stats()["done"] + second.stats()["done"] == 1)
    first.close()
    second.close()
    assert ran == [1]


# One worker: what runs beside the poison when it kills its process has used an attempt too.
ALONE = CONSUMER.replace("workers=2", "workers=1").replace("attempts=100", "attempts=3")
POISON = ALONE.replace(
    "    os.write", "    if order == 'poison': os.write(1, b'poison %d\\n' % order.attempt); os.abort()\n    os.write"
)


def test_p63_a_task_that_kills_its_worker_ends(url):
    """The supervisor starts another each time."""
    with lapse.Scheduler(url, workers=0) as s:
        s.schedule("poison", 0, queue="race")
        s.schedule_many([(f"o{n}", 0.01, None, None, "race") for n in range(99)])
    workers = [Worker(url, POISON)]

    def ran():
        return [run for w in workers for run in w.ran()]


    def is_dead():
        return workers[-1].process.poll() is not None

    def is_over():
        return s.stats()["dead"] == 1 and len({id for id, _ in ran()}) == 100

    with lapse.Scheduler(url, workers=0) as s:
        until(lambda: is_dead() or is_over())
        while not is_over():
            workers[-1].end()
            workers.append(Worker(url, POISON))
            until(lambda: is_dead() or is_over())
            assert len(workers) < 10
        (info,) = s.orders(lapse.State.DEAD)
        assert info.id == "poison" and info.reason is lapse.Reason.LOST
    workers[-1].end()
    assert sorted(n for id, n in ran() if id == "poison") == [1, 2, 3]
    assert {id for id, _ in ran()} == {"poison", *(f"o{n}" for n in range(99))}


# -- The shop: the callback checks the order, as the articles' do -------------------------------------


class Shop:
    """Orders change only from the state that is expected; stock is exact."""

    def __init__(self, count):
        self.lock = threading.Lock()
        self.status = {f"OID{n:08}": "open" for n in range(count)}
        self.stock, self.runs = 0, {}

    def change(self, id, to):
        with self.lock:
            if self.status[id] != "open":
                return False
            self.status[id] = to
            self.stock += to == "closed"
            return True

    def close_unpaid(self, order):
        with self.lock:
            self.runs[str(order)] = self.runs.get(str(order), 0) + 1
        self.change(str(order), "closed")


def test_p70_paid_and_timed_out_at_the_same_instant(url):
    count, delay = rounds(200, 1000, 10000), 0.3
    shop = Shop(count)
    told, errors = {}, []
    with lapse.Scheduler(url, workers=2) as s:
        s.handle("unpaid", shop.close_unpaid)

        def customer(number):
            luck = random.Random(number)
            mine = [id for n, id in enumerate(shop.status) if n % 4 == number]
            for i in range(0, len(mine), 50):
                batch = mine[i : i + 50]
                results = s.schedule_many([(id, delay, None, None, "unpaid") for id in batch])
                errors.extend(r for r in results if not isinstance(r, int))
                now = time.monotonic()
                for at, id in sorted((now + delay + luck.uniform(-0.1, 0.3), id) for id in batch):
                    time.sleep(max(0, at - time.monotonic()))  # sleeps: a customer hesitates
                    told[id] = shop.change(id, "paid")

        in_threads(4, customer)
        until(lambda: len(shop.runs) == count)
    assert not errors
    paid = [id for id, status in shop.status.items() if status == "paid"]
    assert sorted(paid) == sorted(id for id, ok in told.items() if ok)
    assert shop.stock == count - len(paid) and 0 < len(paid) < count
    assert set(shop.runs.values()) == {1}
    print(f"{len(paid)} paid, {shop.stock} closed")


def test_p71_closed_twice_stock_returned_once(url):
    """Each is delivered three times and swept twice at the same time."""
    count = rounds(50, 200, 2000)
    shop, attempts = Shop(count), {}

    def close(order):
        attempts.setdefault(str(order), []).append((order.attempt, order.generation))
        shop.close_unpaid(order)
        if order.attempt < 3:
            raise lapse.Retry(0)

    with lapse.Scheduler(url, workers=2) as s:
        s.handle("unpaid", close, attempts=5)
        s.schedule_many([(id, 0.05, None, None, "unpaid") for id in shop.status])

        def sweep(_):
            for id in list(shop.status):
                shop.change(id, "closed")

        in_threads(2, sweep)
        until(lambda: sum(map(len, attempts.values())) == 3 * count)
    assert shop.stock == count
    for runs in attempts.values():
        assert [n for n, _ in runs] == [1, 2, 3]
        assert len({generation for _, generation in runs}) == 1


# -- Retries and lateness ---------------------------------------------------------------------------


def test_p76_retries_leave_air(url):
    """At about 0, 1, 3, 7 of the first pause, then dead; and a thousand not on one beat."""
    count = rounds(20, 100, 1000)
    pause = rounds(0.2, 0.2, 1)
    starts, errors = {}, []
    with lapse.Scheduler(url, workers=2, on_error=lambda o, e: errors.append(e)) as s:

        @s.handler("close", attempts=4, backoff=pause, jitter_percent=20)
        def close(order):
            starts.setdefault(str(order), []).append(time.monotonic())
            raise ValueError("the gateway is down")

        s.handle("other", lambda order: starts.setdefault(str(order), []).append(0))
        s.schedule_many([(f"o{n}", 0, None, None, "close") for n in range(count)])
        s.schedule("other", 0, queue="other")
        until(lambda: s.stats()["dead"] == count)
    assert len(starts["other"]) == 1 and len(errors) == 4 * count
    second = []
    for id, times in starts.items():
        if id == "other":
            continue
        gaps = [b - a for a, b in zip(times, times[1:])]
        assert len(gaps) == 3
        for n, gap in enumerate(gaps):
            assert gap >= pause * 2**n * 0.8, "it came back before its time"
        second.append(times[2])
    assert max(second) - min(second) > pause * 0.1, "all on one beat"


def test_p76_a_permanent_error_is_not_retried(url):
    ran = []
    with lapse.Scheduler(url, workers=1) as s:

        def close(order):
            ran.append(order.attempt)
            raise lapse.Reject("no such order")

        s.handle("close", close, attempts=5)
        s.schedule("o", 0, queue="close")
        until(lambda: s.stats()["dead"] == 1)
    assert ran == [1]


def schedule_long_ago(server, url, late):
    """As if nobody had consumed since: what is due now gets another due time."""
    with lapse.Scheduler(url, workers=0) as s:
        s.schedule_many([(id, 0, None, None, "q") for id in late])
    work = f"{prefix_of(url)}.work.q"
    with server.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in late:
            method, properties, body = channel.basic_get(work)
            properties.headers["lapse-due"] -= round(late[properties.message_id] * 1e9)
            channel.basic_publish("", work, body, properties)
            channel.basic_ack(method.delivery_tag)


def test_p77_overdue_runs_once_and_knows_how_late(server, url):
    late = {"second": 2, "hour": 3600, "month": 30 * 86400}
    schedule_long_ago(server, url, late)
    with Consumer(url) as c:
        c.s.schedule_many([(f"new{n}", 3600, None, None, "q") for n in range(100)])
        until(lambda: len(c.ran) == 3)
        c.s.schedule("last", 0, queue="q")
        until(lambda: "last" in c.ids())
        assert sorted(c.ids()) == ["hour", "last", "month", "second"]
        assert all(told >= late[id] for id, told, _ in c.ran if id in late)


def test_p77_dropped_only_on_request_and_reported(server, url):
    schedule_long_ago(server, url, {"old": 3600, "new": 1})
    ran, dead = [], []
    with lapse.Scheduler(url, workers=1, on_dead=lambda info, why: dead.append((info.id, why))) as s:
        s.handle("q", lambda order: ran.append(str(order)), expires=600)
        until(lambda: ran == ["new"] and dead == [("old", lapse.Reason.EXPIRED)])


# -- Opening ------------------------------------------------------------------------------------------


def test_a_password_is_never_shown(server, capfd):
    texts = server_cases.are_refused([
        f"amqp://shop:s3cret%40@127.0.0.1:{server.port}/",
        "amqp://shop:s3cret%40@127.0.0.1:1/",
        f"amqp://shop:s3cret%40@127.0.0.1:{server.port}/?prefix=a b",
        f"amqp://shop:s3cret%40@127.0.0.1:{server.port}/nowhere",
    ])  # fmt: skip
    server_cases.show_none_of(["s3cret"], texts, capfd)


@pytest.mark.parametrize(
    "url, words",
    [
        ("amqp:", "//"),
        ("amqp://h:0/", "port"),
        ("amqp://h:65536/", "port"),
        ("amqp://h/?prefix=", "prefix"),
        ("amqp://h/?prefix=amq", "prefix"),
        ("amqp://h/?prefix=amq.x", "prefix"),
        ("amqp://h/?wat=1", "has no option"),
        ("amqp://h%zz/", "hexadecimal"),
    ],
)
def test_wrong_urls_say_what_is_wrong(url, words):
    with pytest.raises((lapse.BadUrl, lapse.Range), match=words):
        lapse.Scheduler(url)


def test_what_the_broker_cannot_do_is_a_clear_error(url, s):
    s.schedule("o", 60, queue="q")
    for ask in (
        lambda: s.cancel("o"),
        lambda: s.reschedule("o", 60),
        lambda: s.schedule("o", 60, queue="q", replace=True),
        lambda: s.orders(lapse.State.PENDING),
    ):
        with pytest.raises(lapse.Unsupported, match="ticket"):
            ask()


def test_after_fork_both_work(url):
    with Consumer(url) as c:
        program = """
import lapse, os, sys
s = lapse.Scheduler(sys.argv[1], workers=0)
s.schedule("parent", 0, queue="q")
pid = os.fork()
if pid == 0:
    s.schedule("child", 0, queue="q")
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
s.schedule("parent again", 0, queue="q")
s.close()
"""
        done = python(program, url)
        assert done.returncode == 0, done.stderr
        until(lambda: sorted(c.ids()) == ["child", "parent", "parent again"])


def test_a_check_leaves_nothing_in_the_broker(server, url):
    """Run by a monitor it would pile up what RabbitMQ cannot cancel."""
    for _ in range(3):
        ran = subprocess.run(
            [sys.executable, "-m", "lapse", "check", "--json", "--url", url],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert ran.returncode == 0 and '"healthy": true' in ran.stdout, ran.stdout + ran.stderr
    names = [name for name in server.queues() if name.startswith(f"{prefix_of(url)}.")]
    assert f"{prefix_of(url)}.work.lapse%2Echeck" in names
    with server.connect() as connection:  # list_queues tells figures that are seconds old
        channel = connection.channel()
        for name in names:
            assert channel.queue_declare(name, passive=True).method.message_count == 0, name


# -- The private server -------------------------------------------------------------------------------


def test_it_does_not_outlive_a_test_that_is_killed_with_its_group(tmp_path):
    start_and_be_killed("rabbitmq", tmp_path / "rabbitmq")
