"""The Redis store from Python: threads, asyncio, other processes, and what is particular to it."""

import threading

import lapse
import pytest
import server_cases
from consumer import Worker
from lapse import Fate, Reason, State
from private_server import start_and_be_killed
from redis_server import Connection, Server
from support import PATIENCE, ids, in_threads, rounds, until

SERVER = Server


# -- Who uses it ---------------------------------------------------------------------------


def test_threads_schedule_and_workers_run(url):
    with lapse.Scheduler(url, workers=4) as s:
        server_cases.threads_schedule_and_workers_run(s)
        assert ids(s, State.PENDING | State.RUNNING) == []


def test_asyncio_and_threads_share_the_handlers(url):
    async def pay(s):
        await s.schedule("paid", 60, queue="close")
        assert await s.cancel("paid") is Fate.CANCELLED

    server_cases.asyncio_and_another_process(url, pay)


def test_a_consumer_hears_at_once_of_what_others_schedule(url, s):
    """By a hint: polling alone would take an hour."""
    ran = threading.Event()
    with lapse.Scheduler(url + "&poll=1h") as consumer:
        consumer.handle("close", lambda order: ran.set())
        s.schedule("later", 3600, queue="close")
        s.schedule("o", 0, queue="close")
        assert ran.wait(PATIENCE)


# -- Ids, payloads, numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("years", [1, 50, 86, 99])
def test_generations_are_exact_in_later_years(url, years):
    clock = lapse.ManualClock()
    for _ in range(years):
        clock.advance(366 * 86400)
    with lapse.Scheduler(url, workers=0, clock=clock) as s:
        first, second = s.schedule("o", 60, queue="q"), s.schedule("p", 60, queue="q")
        assert [s.get(id).generation for id in ("o", "p")] == [first, second]
        assert s.cancel("o", second) is Fate.UNKNOWN
        assert s.cancel("o", first) is Fate.CANCELLED
        ran = []
        s.handle("q", lambda order: ran.append(str(order)))
        s.schedule("before", 59, queue="q")
        s.schedule("tie", 60, queue="q")
        clock.advance(61)
        while s.process():
            pass
        assert ran == ["before", "p", "tie"]


def test_p55_eighteen_digits_and_bytes_come_back_as_they_were(url, s):
    orders = {
        "130775545883395173": bytes(range(256)) * 3,
        "130775545883395174": b"130775545883395173",
        "999999999999999999": b"\0",
        "9223372036854775807": b"\r\n$3\r\nfoo\r\n",
        "00130775545883395173": b"",
        "café-1": "ünïcödé".encode(),
        "{x}:*": b"\xff\xfe",
    }
    for id, payload in orders.items():
        s.schedule(id, 0, queue="q", payload=payload)
    assert ids(s) == sorted(orders)
    for id, payload in orders.items():
        assert s.get(id).payload == payload
    seen = {}
    with lapse.Scheduler(url) as consumer:

        @consumer.handler("q", attempts=2, backoff=0.001)
        def handle(order):
            if order.attempt == 1:
                raise lapse.Retry(0)
            if order.id == "999999999999999999":
                raise lapse.Reject("no")
            seen[order.id] = order.payload

        until(lambda: len(seen) == len(orders) - 1 and ids(s, State.DEAD) != [])
    dead = s.get("999999999999999999")
    assert dead.reason is Reason.REJECTED and dead.payload == b"\0" and dead.error == "no"
    assert seen == {id: p for id, p in orders.items() if id != dead.id}


def test_generations_and_fences_are_exact_and_grow(url, s):
    last = 0
    for i in range(20):
        generation = s.schedule("o", 60, queue="q", replace=True)
        assert generation > last and s.get("o").generation == generation
        assert last == 0 or s.cancel("o", generation=last) is Fate.UNKNOWN
        last = generation
    assert s.cancel("o", generation=last) is Fate.CANCELLED


# -- What is in the server ---------------------------------------------------------------------------


def test_all_keys_are_in_one_slot_and_nothing_is_left(server, url, s):
    """{prefix} is in every name, and orders that ended leave nothing but counters."""
    with Connection(server.port) as c:
        def keys():
            name = url.rsplit("=", 1)[1].encode()
            return sorted(k for k in c.ask("KEYS", "*") if name in k)

        s.schedule_many([(f"o{i}", 0, None, b"x", "q") for i in range(20)])
        for i in range(10):
            s.cancel(f"o{i}")
        while order := s.poll("q"):
            order.done()
        s.stats()  # A look at all queues forgets when there was something in them.
        tag = b"{" + url.rsplit("=", 1)[1].encode() + b"}:"
        assert keys() == [tag + b"meta", tag + b"queues"]


def test_a_look_at_any_queue_does_not_look_at_each(server, s):
    """Nor a count: the server works for all its clients meanwhile."""
    count = 2000
    s.schedule_many([(f"o{i}", 3600 + i, None, None, f"q{i}") for i in range(count)])
    s.schedule("now", 0, queue="q1000")
    server.ask("CONFIG", "RESETSTAT")
    order = s.take(timeout=PATIENCE)
    assert order == "now"
    order.done()
    assert s.stats()["pending"] >= count
    s.schedule("later", 60, queue="q1001")
    assert s.poll() is None
    lines = server.ask("INFO", "commandstats").decode().split()
    calls = [int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line]
    assert sum(calls) < count / 2, lines


def test_two_prefixes_are_two_stores(url, s):
    with lapse.Scheduler(url + "x", workers=0) as other:
        s.schedule("o", 60, queue="q")
        assert other.get("o") is None and other.cancel("o") is Fate.UNKNOWN
        assert other.schedule("o", 60, queue="q") > 0


def test_a_key_of_somebody_else_is_named(server, url):
    server.ask("SET", "{%s}:due" % url.rsplit("=", 1)[1], "mine")
    with lapse.Scheduler(url, workers=0) as s:
        with pytest.raises(lapse.BadStore, match="another prefix"):
            s.schedule("o", 1, queue="q")


def test_another_layout_is_refused(server, url):
    server.ask("HSET", "{%s}:meta" % url.rsplit("=", 1)[1], "id", "x", "v", "7")
    with pytest.raises(lapse.BadStore, match="another version of lapse"):
        lapse.Scheduler(url)


def test_scripts_that_the_server_forgot_are_loaded_again(server, url, s):
    s.schedule("a", 60, queue="q")
    server.ask("SCRIPT", "FLUSH")
    s.schedule("b", 60, queue="q")
    assert ids(s) == ["a", "b"]


def test_a_full_server_refuses_new_orders_and_lets_the_others_end(server, url, s):
    s.schedule_many([(f"o{i}", 0, None, b"x" * 100, "q") for i in range(10)])
    used = dict(
        line.split(b":", 1) for line in server.ask("INFO", "memory").split(b"\r\n") if b":" in line
    )[b"used_memory"]
    server.ask("CONFIG", "SET", "maxmemory", int(used) // 2)
    try:
        with pytest.raises(lapse.System, match="maxmemory"):
            s.schedule("more", 0, queue="q")
        ran = []
        with lapse.Scheduler(url) as consumer:
            consumer.handle("q", ran.append)
            until(lambda: len(ran) == 10)
    finally:
        server.ask("CONFIG", "SET", "maxmemory", 0)
    assert s.schedule("more", 0, queue="q") > 0


# -- Opening ---------------------------------------------------------------------------------------


def test_p69_a_server_that_drops_keys_is_refused(server, url):
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(lapse.Unsupported, match="noeviction.*allkeys-lru.*eviction=allow"):
            lapse.Scheduler(url)
        lapse.Scheduler(url + "&eviction=allow").close()
        server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        lapse.Scheduler(url).close()
    finally:
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_a_server_that_keeps_nothing_is_warned_of(tmp_path, caplog):
    server = Server(tmp_path, "--appendonly", "no")
    with lapse.Scheduler(server.url) as s:
        s.schedule("o", 60, queue="q")
        until(lambda: "set appendonly yes" in caplog.text)
    server.stop()


def test_a_password_is_used_and_never_shown(tmp_path, capfd):
    secret = "ge:h/ei?m@%&"
    server = Server(tmp_path)
    server.ask("CONFIG", "SET", "requirepass", secret)
    place = server.url.removeprefix("redis://")
    encoded = "ge%3Ah%2Fei%3Fm%40%25%26"
    texts = []
    for before in (f":{encoded}@", f"default:{encoded}@"):
        with lapse.Scheduler(f"redis://{before}{place}", workers=0) as s:
            assert s.schedule("o", 60, queue="q", replace=True) > 0
            texts += [repr(s), str(s)]
    texts += server_cases.are_refused([
        f"redis://:{encoded}x@{place}",
        f"redis://default:{encoded}x@{place}",
        f"redis://{place}",
        f"redis://:{secret}@{place}",
        f"redis://:{encoded}@127.0.0.1:1/0",
        f"redis://:{encoded}@{place}?prefix=a b",
    ])  # fmt: skip
    server_cases.show_none_of(["ge:h", "ge%3A", "ei?m"], texts, capfd)
    with Connection(server.port) as c:
        c.ask("AUTH", secret)
        c.ask("CONFIG", "SET", "requirepass", "")
    server.stop()


@pytest.mark.parametrize(
    "url, words",
    [
        ("redis:", "//"),
        ("redis://h:0/0", "port"),
        ("redis://h:65536", "port"),
        ("redis://h:1x", "port"),
        ("redis://h/x", "number"),
        ("redis://[::1", r"\]"),
        ("redis://user@h", "password"),
        ("redis://h/0?prefix=", "prefix"),
        ("redis://h/0?prefix={a}", "braces"),
        ("redis://h/0?wait=x", "wait"),
        ("redis://h/0?wat=1", "has no option"),
        ("redis://h%zz/0", "hexadecimal"),
        ("redis://a@b@c/0?x=@", "'@' behind"),
    ],
)
def test_wrong_urls_say_what_is_wrong(url, words):
    with pytest.raises((lapse.BadUrl, lapse.Range), match=words):
        lapse.Scheduler(url)


def test_a_socket_and_a_database(tmp_path):
    path = f"{tmp_path}/r.sock"
    server = Server(tmp_path / "data", "--unixsocket", path)
    for url in (f"redis://{path}", f"redis://{path.replace('/', '%2F')}/0", server.url):
        with lapse.Scheduler(url, workers=0) as s:
            s.schedule("o", 60, queue="q", replace=True)
            assert ids(s) == ["o"]
    with lapse.Scheduler(f"redis://{path}?db=3", workers=0) as s:
        assert ids(s) == []
    server.stop()


# -- The race of the article -----------------------------------------------------------------------


def all_of(count, done):
    """Until so many are done, as long as it goes on."""
    while (before := done()) < count:
        until(lambda n=before: done() > n)


def naive(port, key, consumers):
    """ZRANGEBYSCORE, then ZREM whose answer is not looked at, then run: how many runs."""
    runs, lock = [], threading.Lock()

    def consume(_):
        with Connection(port) as c:
            while found := c.ask("ZRANGEBYSCORE", key, 0, 1, "LIMIT", 0, 20):
                for id in found:
                    c.ask("ZREM", key, id)
                    with lock:
                        runs.append(id)

    in_threads(consumers, consume)
    return runs


def test_the_race_of_ten_consumers(server, url):
    """20 000 due orders: the naive consumer runs some twice; ours each exactly once."""
    orders = rounds(2000, 20000, 20000)
    with Connection(server.port) as c:
        for i in range(0, orders, 500):
            c.ask("ZADD", "naive", *[w for n in range(i, i + 500) for w in (0, f"OID{n:08}")])
    runs = naive(server.port, "naive", 10)
    doubles = len(runs) - len(set(runs))
    assert len(set(runs)) == orders and doubles > 0
    print(f"naive: {doubles} runs too many of {orders} orders")

    with lapse.Scheduler(url, workers=0) as s:
        for i in range(0, orders, 500):
            s.schedule_many([(f"OID{n:08}", 0, None, None, "race") for n in range(i, i + 500)])
    ran, lock = [], threading.Lock()

    def close(order):
        with lock:
            ran.append(str(order))

    consumers = [lapse.Scheduler(url, workers=1) for _ in range(10)]
    for consumer in consumers:
        consumer.handle("race", close)
    all_of(orders, lambda: len(ran))
    all_of(orders, lambda: sum(c.stats()["done"] for c in consumers))
    for consumer in consumers:
        consumer.close()
    assert len(ran) == len(set(ran)) == orders


def test_the_race_of_ten_processes_some_of_which_are_killed(url):
    """Every order runs; only those that a killed process held run once more."""
    orders = rounds(500, 3000, 20000)
    with lapse.Scheduler(url, workers=0) as s:
        for i in range(0, orders, 500):
            s.schedule_many([(f"OID{n:08}", 0, None, None, "race") for n in range(i, i + 500)])
        workers = [Worker(url + "&lease=1s") for _ in range(10)]
        all_of(orders // 4, lambda: orders - s.queue_stats("race")["pending"])
        for worker in workers[:3]:
            worker.process.kill()

        def gone():
            q = s.queue_stats("race")
            return orders - q["pending"] - q["running"]

        all_of(orders, gone)
        for worker in workers:
            worker.end()
    runs = [run for worker in workers for run in worker.ran()]
    assert len({id for id, _ in runs}) == orders
    assert len(runs) - orders <= 3 * 2, "more ran twice than the killed have held"


# -- The private server ------------------------------------------------------------------------------


def test_it_does_not_outlive_a_test_that_is_killed_with_its_group(tmp_path):
    start_and_be_killed("redis", tmp_path / "redis")
