"""The Redis store over TLS: with a private CA, a name that is verified, and certificates of clients."""

import lapse
import pytest
from authority import Authority
from consumer import try_schedule
from redis_server import Server
from support import free_port, until


def has_tls() -> bool:
    try:
        lapse.Scheduler("rediss://127.0.0.1:1/0")
    except lapse.Unsupported:
        return False
    except lapse.Offline:
        return True
    return True


needs_tls = pytest.mark.skipif(not has_tls(), reason="this build has no TLS for Redis")


@pytest.mark.skipif(has_tls(), reason="this build has TLS for Redis")
def test_a_build_without_tls_says_what_it_lacks():
    with pytest.raises(lapse.Unsupported, match="TLS.*hiredis_ssl.*tunnel"):
        lapse.Scheduler("rediss://127.0.0.1:6379/0")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://localhost/0?ca=/x", "rediss: instead of redis:"),
        ("redis://localhost/0?cert=/x&key=/y", "rediss: instead of redis:"),
        ("redis://localhost/0?ca=", "name of a file"),
    ],
)
def test_wrong_options(url, words):
    with pytest.raises(lapse.BadUrl, match=words):
        lapse.Scheduler(url)


class TlsServer(Server):
    """With a port for TLS beside the plain one."""

    def __init__(self, folder, authority, cert, key, clients="no"):
        self.tls_port = free_port()
        super().__init__(folder, "--tls-port", str(self.tls_port), "--tls-cert-file", str(cert),
                         "--tls-key-file", str(key), "--tls-ca-cert-file", str(authority.file),
                         "--tls-auth-clients", clients)  # fmt: skip

    def at(self, host, options=""):
        return f"rediss://{host}:{self.tls_port}/0?{options}"


@pytest.fixture(scope="module")
def server(tmp_path_factory, authority):
    cert, key = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    s = TlsServer(tmp_path_factory.mktemp("server"), authority, cert, key)
    yield s
    s.stop()


@needs_tls
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_orders_go_through_tls(server, authority, host):
    url = server.at(host, f"ca={authority.file}&prefix={host}")
    ran = []
    with lapse.Scheduler(url) as s:
        s.handle("q", lambda order: ran.append((str(order), order.payload)))
        assert s.schedule("far", 60, queue="q") > 0
        results = s.schedule_many([(f"o{i}", 0, None, b"\0" * 1000, "q") for i in range(500)])
        assert all(isinstance(r, int) for r in results)
        until(lambda: len(ran) == 500)
        assert sorted(ran)[0] == ("o0", b"\0" * 1000)
        assert s.cancel("far")


@needs_tls
def test_hints_and_new_connections_go_through_tls(server, authority):
    url = server.at("localhost", f"ca={authority.file}&prefix=hints&poll=1h")
    ran = []
    with lapse.Scheduler(url) as consumer, lapse.Scheduler(url, workers=0) as s:
        consumer.handle("q", lambda order: ran.append(str(order)))
        for i in range(3):
            s.schedule(f"o{i}", 0, queue="q")
            until(lambda n=i: len(ran) == n + 1)
        server.ask("CLIENT", "KILL", "TYPE", "normal")
        try_schedule(s, "after")
        until(lambda: "after" in ran)


@needs_tls
def test_a_certificate_of_another_ca_is_refused(server, authority, tmp_path):
    other = Authority(tmp_path / "other", "another CA")
    for options in (f"ca={other.file}", ""):
        with pytest.raises(lapse.System, match="not trusted .*URL option ca"):
            lapse.Scheduler(server.at("localhost", options))


@needs_tls
def test_a_certificate_for_another_name_is_refused(authority, tmp_path):
    cert, key = authority.sign("elsewhere", "DNS:redis.example")
    server = TlsServer(tmp_path, authority, cert, key)
    try:
        for host in ("localhost", "127.0.0.1"):
            with pytest.raises(lapse.System, match="for another name"):
                lapse.Scheduler(server.at(host, f"ca={authority.file}"))
    finally:
        server.stop()


@needs_tls
def test_a_server_that_wants_a_certificate_gets_it(authority, tmp_path):
    cert, key = authority.sign("server2", "DNS:localhost")
    server = TlsServer(tmp_path, authority, cert, key, clients="yes")
    mine, my_key = authority.sign("client", "DNS:client")
    both = tmp_path / "both.pem"
    both.write_text(mine.read_text() + my_key.read_text())
    try:
        for options in (f"cert={mine}&key={my_key}", f"cert={both}"):
            with lapse.Scheduler(server.at("localhost", f"ca={authority.file}&{options}")) as s:
                assert s.schedule("o", 60, queue="q", replace=True) > 0
        with pytest.raises(lapse.Offline):
            lapse.Scheduler(server.at("localhost", f"ca={authority.file}"))
    finally:
        server.stop()


@needs_tls
def test_files_that_cannot_be_used_are_named(server, authority, tmp_path):
    ca = f"ca={authority.file}"
    (tmp_path / "empty").write_text("")
    for options, word in (
        (f"ca={tmp_path}/none", "option ca"),
        (f"{ca}&cert={tmp_path}/empty", "option cert"),
        (f"{ca}&cert={authority.file}&key={tmp_path}/empty", "option key"),
        (f"{ca}&key={tmp_path}/empty", "no cert"),
    ):
        with pytest.raises(lapse.BadUrl, match=word):
            lapse.Scheduler(server.at("localhost", options))


@needs_tls
def test_a_server_without_tls_is_not_waited_for(server, authority):
    url = f"rediss://localhost:{server.port}/0?ca={authority.file}&timeout=1s"
    with pytest.raises(lapse.Offline, match="TLS"):
        lapse.Scheduler(url)
