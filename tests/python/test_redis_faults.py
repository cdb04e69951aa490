"""The Redis store while the link drops, the server dies, is emptied, or fails over. P-62, P-68,
P-69."""

import threading
import time

import lapse
import pytest
import server_cases
from consumer import Consumer, offline, place, try_schedule
from lapse import State
from redis_server import Connection, Server
from support import PATIENCE, TIER, in_threads, until


@pytest.fixture
def server(tmp_path):
    s = Server(tmp_path)
    yield s
    s.stop()


# -- The link ---------------------------------------------------------------------------------


@server_cases.OUTAGES
def test_p62_refused_for_a_while(proxy, through, caplog, seconds):
    ran = server_cases.refused_for_a_while(proxy, through, caplog, seconds)
    assert sorted(ran) == sorted(set(ran))


def test_p62_the_first_connection_fails(proxy, through):
    server_cases.the_first_connection_fails(proxy, through)


def test_p62_the_connection_of_hints_alone_is_killed(server):
    with Consumer(server.url + "?poll=200ms") as c:
        place(c.s, "a", 5, 0)
        until(lambda: len(c.ran) == 5)
        with lapse.Scheduler(server.url, workers=0) as other:
            for i in range(5):
                server.ask("CLIENT", "KILL", "TYPE", "pubsub")
                other.schedule(f"b{i}", 0, queue="q")
                until(lambda n=i: len(c.ran) == 6 + n)
        until(lambda: server.ask("PUBSUB", "NUMSUB", "{lapse}:wake")[1] >= 1)


@pytest.mark.parametrize("rights", [("-subscribe",), ("resetchannels",)])
def test_who_may_not_subscribe_polls_and_does_not_knock_each_second(server, caplog, rights):
    server.ask("ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all", *rights)
    url = server.url.replace("redis://", "redis://worker:pw@") + "?poll=20ms"
    with Consumer(url) as c, lapse.Scheduler(server.url, workers=0) as other:
        until(lambda: "may not subscribe" in caplog.text)
        before = connections(server)
        began = time.monotonic()
        for i in range(5):
            other.schedule(f"o{i}", 0, queue="q")
            until(lambda n=i: len(c.ran) == n + 1)
        while time.monotonic() < began + 2.5:
            other.get("o0")
            time.sleep(0.05)  # sleeps: a try each second would show
        asked = connections(server) - before - 1
        assert asked == 0, "it tried to subscribe again"
    assert caplog.text.count("may not subscribe") == 1


def connections(server):
    lines = server.ask("INFO", "stats").decode().split()
    return next(int(x.split(":")[1]) for x in lines if x.startswith("total_connections_received"))


def test_hints_come_again_after_their_connection_was_killed(server):
    with Consumer(server.url + "?poll=300ms") as c, lapse.Scheduler(server.url, workers=0) as other:
        server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        until(lambda: server.ask("PUBSUB", "NUMSUB", "{lapse}:wake")[1] >= 1)
        other.schedule("o", 0, queue="q")
        until(lambda: len(c.ran) == 1)


def test_cut_again_and_again_loses_nothing(proxy, through):
    """What was answered stands; what was not known is there or not, but once."""
    with Consumer(through + "&lease=2s") as c:
        known = server_cases.cut_again_and_again(proxy, c, 15, 0.01)
        until(lambda: not c.s.orders(State.PENDING | State.RUNNING))
        assert set(c.ids()) <= known
        assert len(c.ids()) - len(set(c.ids())) <= 15, "a cut repeats what it hit, nothing else"


def test_a_stalled_link_is_not_known_and_not_waited_for(proxy, through):
    with lapse.Scheduler(through + "&timeout=300ms&lease=4s", workers=0) as s:
        said = server_cases.a_stalled_link_is_not_waited_for(proxy, s)
        assert isinstance(said, lapse.Unsure)
        assert s.get("o").state is State.PENDING


# -- The server ---------------------------------------------------------------------------------------


def test_p62_the_server_is_killed_and_started_again(server):
    with Consumer(server.url) as c:
        place(c.s, "far", 200, 3600)
        place(c.s, "o", 50, 0.3)
        server.kill()
        server.start()
        until(lambda: len(set(c.ids())) == 50)
        fences = [fence for _, _, fence in c.ran]
        assert fences == sorted(fences)
        assert len(c.s.orders(State.PENDING)) == 200
        try_schedule(c.s, "after")
        until(lambda: "after" in c.ids())


@pytest.fixture
def pair(server, tmp_path):
    """A server with a replica, once they are in step."""
    replica = Server(tmp_path / "replica", "--replicaof", f"127.0.0.1 {server.port}")
    until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
    yield server, replica
    replica.stop()


def test_p69_replicas_that_confirm_nothing_are_warned_of(pair, caplog):
    with lapse.Scheduler(pair[0].url) as s:
        s.schedule("o", 60, queue="q")
        until(lambda: "wait=1" in caplog.text)


def test_p69_what_no_replica_has_confirmed_is_not_known(pair):
    primary, replica = pair
    with lapse.Scheduler(primary.url + "?wait=1&wait_limit=100ms", workers=0) as s:
        assert s.schedule("a", 60, queue="q") > 0
        replica.do("pause")
        try:
            with pytest.raises(lapse.Unsure, match="0 replicas have confirmed"):
                s.schedule("b", 60, queue="q")
            with pytest.raises(lapse.Unsure):
                s.cancel("a")
        finally:
            replica.do("resume")
        until(lambda: not isinstance(s.schedule_many([("c", 60, None, None, "q")])[0], lapse.Unsure))


def test_p69_fail_over_loses_nothing_that_was_answered(pair):
    """With wait=1: every answered order is there, and no fence or generation is given again."""
    primary, replica = pair
    proxy = primary.proxy()
    answered, asked, cancelled, end = {}, set(), set(), threading.Event()
    url = proxy.url + "?wait=1&wait_limit=2s&lease=3s"
    with Consumer(url, "run") as c, lapse.Scheduler(url, workers=0) as s:

        def producer(n):
            i = 0
            while not end.is_set():
                id, i = f"{n}-{i}", i + 1
                queue = "run" if i % 3 == 0 else "far"
                try:
                    answered[id] = s.schedule(id, 0 if queue == "run" else 3600, queue=queue)
                    if i % 5 == 4 and queue == "far":
                        asked.add(id)
                        if s.cancel(id):
                            cancelled.add(id)
                except (lapse.Offline, lapse.Unsure):
                    pass

        threads = [threading.Thread(target=producer, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(answered) > 200 and len(c.ran) > 30)
        primary.kill()
        replica.ask("REPLICAOF", "NO", "ONE")
        # A new replica, so that wait=1 can be met again.
        second = Server(replica.folder / "second", "--replicaof", f"127.0.0.1 {replica.port}")
        proxy.target = replica.port
        at_death = set(answered)
        until(lambda: len(answered) > len(at_death) + 100)
        end.set()
        for thread in threads:
            thread.join()
        due = {id for id in answered if (int(id.split("-")[1]) + 1) % 3 == 0}
        until(lambda: due <= set(c.ids()))
        pending = {info.id: info.generation for info in s.orders(State.PENDING)}
        for id, generation in answered.items():
            if id in due:
                continue
            if id in cancelled:
                assert id not in pending, f"{id} was cancelled, and is back"
            elif id not in asked:  # A cancel that is not known may have been done.
                assert id in pending, f"{id} was answered and is lost"
                assert pending[id] == generation
        generations = list(answered.values())
        assert len(set(generations)) == len(generations)
        by_id = {}
        for id, _, fence in c.ran:
            assert fence > by_id.get(id, 0)
            by_id[id] = fence
        fences = [fence for _, _, fence in c.ran]
        assert fences == sorted(fences) and len(set(fences)) == len(fences)
    proxy.close()
    second.stop()


def test_p69_a_store_that_was_emptied_says_so(server, caplog):
    """And goes on."""
    with Consumer(server.url + "?poll=100ms") as c:
        place(c.s, "o", 10, 3600)
        generation = c.s.schedule("x", 3600, queue="q")
        server.ask("FLUSHALL")
        until(lambda: "the Redis store was reset" in caplog.text)
        until(lambda: offline(c.s) == 0)
        assert c.s.orders() == []
        # "Reconcile": whoever must have a timer gets one, whoever has one keeps it.
        wanted = [(f"o{n}", 3600, None, None, "q") for n in range(10)]
        again = c.s.schedule_many(wanted)
        assert all(isinstance(r, int) and r > generation for r in again)
        assert all(isinstance(r, lapse.Exists) for r in c.s.schedule_many(wanted))
        c.s.schedule("now", 0, queue="q")
        until(lambda: c.ids() == ["now"])


def test_a_reset_that_meets_a_cut_is_told_all_the_same(server, proxy, caplog):
    """The link ends when the new store was made, and before that is known here."""
    with lapse.Scheduler(proxy.url + "?poll=1h", workers=0) as s:
        s.schedule("a", 3600, queue="alpha")
        s.schedule("b", 3600, queue="beta")
        server.ask("FLUSHALL")
        proxy.cut_after = b"\r\n$1\r\nO\r\n"
        told = []
        deadline = time.monotonic() + PATIENCE
        while not told or isinstance(told[-1], lapse.Error):
            assert time.monotonic() < deadline, told
            try:
                told.append(s.schedule(f"n{len(told)}", 0, queue="beta"))
            except lapse.Error as e:
                told.append(e)
        assert proxy.cut_after is None, "it was not cut"
        until(lambda: "the Redis store was reset" in " ".join(map(str, told)) + caplog.text)
    with Consumer(server.url, "beta") as c:
        until(lambda: f"n{len(told) - 1}" in c.ids())


def test_ages_are_built_though_the_first_who_began_it_is_gone(server, proxy):
    with lapse.Scheduler(server.url, workers=0) as s:
        place(s, "old", 5, 3600)
    options = "?max_pending=5&overflow=dead_letter_oldest"
    proxy.cut_before = b"HSCAN"
    with pytest.raises(lapse.Offline):
        lapse.Scheduler(proxy.url + options, workers=0)
    with lapse.Scheduler(server.url + options, workers=0) as s:
        place(s, "new", 2, 3600)
        assert sorted(info.id for info in s.orders(State.DEAD)) == ["old0", "old1"]
    with lapse.Scheduler(server.url + options, workers=0) as s:
        assert server.ask("HGET", "{lapse}:meta", "aged") == b"built"
        place(s, "newer", 1, 3600)
        assert "old2" in [info.id for info in s.orders(State.DEAD)]


def test_a_queue_that_the_server_lost_gives_its_orders_to_no_other(tmp_path):
    """It came back with an older snapshot, to a client that knew more queues than it does."""
    server = Server(tmp_path, "--appendonly", "no")
    try:
        with lapse.Scheduler(server.url, workers=0) as s:
            s.schedule("a", 3600, queue="alpha")
            server.ask("SAVE")
            s.schedule("b", 3600, queue="beta")
            server.kill()
            server.start()
            try_schedule(s, "b2", 0, queue="beta")
            with Consumer(server.url, "gamma") as gamma, Consumer(server.url, "beta") as beta:
                s.schedule("c", 0, queue="gamma")
                until(lambda: beta.ids() == ["b2"])
                until(lambda: gamma.ids() == ["c"])
            assert s.get("a").queue == "alpha"
    finally:
        server.stop()


def test_a_queue_whose_number_another_got_gets_nothing_of_it(server):
    """As when the server behind a connection that goes on has lost the last queue: names are sent."""
    with Consumer(server.url, "beta") as beta, lapse.Scheduler(server.url, workers=0) as s:
        s.schedule("b", 0, queue="beta")
        until(lambda: beta.ids() == ["b"])
        number = server.ask("HGET", "{lapse}:queues", "beta")
        server.ask("HDEL", "{lapse}:queues", "beta")
        server.ask("HDEL", "{lapse}:meta", b"queue:" + number)
        s.schedule("c", 0, queue="gamma")
        assert server.ask("HGET", "{lapse}:queues", "gamma") == number
        s.schedule("b2", 0, queue="beta")
        until(lambda: beta.ids() == ["b", "b2"])
        assert s.get("c").queue == "gamma"
        assert [order.id for order in s.orders()] == ["c"]


# -- Notifications are a hint ----------------------------------------------------------------------------


def keys_with_a_ttl(server, count):
    with Connection(server.port) as c:
        for i in range(0, count, 1000):
            for n in range(i, i + 1000):
                c.send("SET", f"other:{n}", "x", "EX", 3600)
            for _ in range(1000):
                c.read()


@pytest.mark.parametrize("events", ["", "&events=1"], ids=["own", "keyspace"])
def test_p68_subscriber_cut_around_1000_due_orders(server, events):
    """100 000 other keys with a TTL are there; the poll bound holds."""
    keys_with_a_ttl(server, 20_000 if TIER == "quick" else 100_000)
    if events:
        server.ask("CONFIG", "SET", "notify-keyspace-events", "KEA")
    with Consumer(server.url + "?poll=500ms" + events) as c:
        with lapse.Scheduler(server.url, workers=0) as other:
            results = other.schedule_many(
                [(f"o{n}", 0.5 + n / 500, None, None, "q") for n in range(1000)]
            )
            assert all(isinstance(r, int) for r in results)
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            server.ask("CLIENT", "KILL", "TYPE", "pubsub")
            time.sleep(0.02)  # sleeps: the subscriber is cut for as long as the case says
        until(lambda: len(c.ran) == 1000)
        assert len(set(c.ids())) == 1000
        bound = c.s.stats()["poll_bound"]
        assert bound == 0.5
        late = sorted(late for _, late, _ in c.ran)
        print(f"late by {late[500] * 1000:.1f} ms in the middle, {late[-1] * 1000:.1f} ms at most")
        assert late[-1] <= bound + PATIENCE / 3  # On a loaded machine.


def test_p68_without_any_notification(server):
    """A user that may neither publish nor subscribe: the poll finds everything."""
    server.ask("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "-subscribe", "resetchannels")
    url = server.url.replace("//", "//deaf:pw@") + "?poll=100ms"
    with Consumer(url) as c, lapse.Scheduler(server.url, workers=0) as other:
        for i in range(5):
            other.schedule(f"o{i}", 0, queue="q")
            until(lambda n=i: len(c.ran) == n + 1)


def test_many_schedulers_on_a_failing_link(proxy):
    """Each keeps its own connection; nobody's error is another's."""
    schedulers = [lapse.Scheduler(proxy.url + f"?prefix=t{n}", workers=0) for n in range(4)]
    done = threading.Event()

    def cut():
        while not done.wait(0.05):
            proxy.cut()

    def work(n):
        for i in range(30):
            try_schedule(schedulers[n], f"o{i}", 60)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        in_threads(4, work)
    finally:
        done.set()
        thread.join()
    for s in schedulers:
        until(lambda s=s: offline(s) == 0)
        assert len(s.orders()) == 30
        s.close()
