"""The RabbitMQ store over TLS: with a private CA, a name that is verified, and certificates of clients."""

import lapse
import pytest
import server_cases
from authority import Authority
from consumer import try_schedule
from proxy import Proxy
from support import free_port, of_debian, until

of_debian("pika")
from rabbitmq_server import Server  # noqa: E402: it needs pika


class TlsServer(Server):
    """With a port for TLS beside the plain one."""

    def __init__(self, folder, authority, cert, key, clients=False):
        self.tls_port = free_port()
        options = [f'{{cacertfile, "{authority.file}"}}', f'{{certfile, "{cert}"}}', f'{{keyfile, "{key}"}}']
        if clients:
            options += ["{verify, verify_peer}", "{fail_if_no_peer_cert, true}"]
        super().__init__(
            folder,
            f'ssl_listeners=[{{"127.0.0.1", {self.tls_port}}}]',
            f"ssl_options=[{', '.join(options)}]",
        )

    def at(self, options="", host="localhost", port=None, user="guest:guest"):
        """A fresh store."""
        place = self.place().split("?")[1]
        return f"amqps://{user}@{host}:{port or self.tls_port}/?{place}&{options}"


@pytest.fixture(scope="module")
def server(tmp_path_factory, authority):
    cert, key = authority.sign("server", "DNS:localhost")
    s = TlsServer(tmp_path_factory.mktemp("server"), authority, cert, key)
    yield s
    s.stop()


def test_orders_go_through_tls(server, authority):
    ran = []
    with lapse.Scheduler(server.at(f"cacert={authority.file}"), workers=2) as s:
        s.handle("q", lambda order: ran.append((str(order), len(order.payload))))
        sizes = {f"o{i}": i * i for i in range(300)} | {"large": 3 << 20}
        results = s.schedule_many([(id, 0.1, None, b"\0" * n, "q") for id, n in sizes.items()])
        assert all(isinstance(r, int) for r in results), results
        until(lambda: len(ran) == len(sizes))
        assert dict(ran) == sizes


def test_a_lost_connection_is_made_anew(server, authority):
    proxy = Proxy(server.tls_port)
    ran = []
    with lapse.Scheduler(server.at(f"cacert={authority.file}", port=proxy.port), workers=1) as s:
        s.handle("q", lambda order: ran.append(str(order)))
        for n in range(3):
            s.schedule(f"before{n}", 0, queue="q")
            until(lambda n=n: f"before{n}" in ran)
            proxy.cut()
            try_schedule(s, f"after{n}")
            until(lambda n=n: f"after{n}" in ran)
    proxy.close()


def test_a_ticket_wakes_through_tls(server, authority, tmp_path):
    url = server.at(f"cacert={authority.file}&poll=1h&ticket=sqlite%3A///{tmp_path}/orders.db")
    ran = []
    with lapse.Scheduler(url, workers=1) as c, lapse.Scheduler(url, workers=0) as s:
        c.handle("q", lambda order: ran.append(str(order)))
        assert c.stats()["poll_bound"] == 3600  # The broker wakes.
        s.schedule("o", 0.2, queue="q")
        until(lambda: ran == ["o"])


def test_a_certificate_of_another_ca_is_refused(server, authority, tmp_path):
    other = Authority(tmp_path / "other", "another CA")
    for options in (f"cacert={other.file}", "", f"cacert={other.file}&ticket=sqlite%3A///{tmp_path}/o.db"):
        with pytest.raises(lapse.System, match="not trusted.*URL option cacert"):
            lapse.Scheduler(server.at(options))


def test_a_certificate_for_another_name_is_refused(server, authority):
    with pytest.raises(lapse.System, match="for another name.*host name"):
        lapse.Scheduler(server.at(f"cacert={authority.file}", host="127.0.0.1"))


def test_verify_none_trusts_any_server(server, authority, tmp_path):
    other = Authority(tmp_path / "other", "another CA")
    for options in ("", f"&cacert={other.file}"):
        for host in ("localhost", "127.0.0.1"):
            with lapse.Scheduler(server.at("verify=none" + options, host=host), workers=0) as s:
                assert s.schedule("o", 60, queue="q") > 0


def test_a_server_that_wants_a_certificate_gets_it(authority, tmp_path):
    cert, key = authority.sign("server2", "DNS:localhost")
    mine, my_key = authority.sign("client", "DNS:client")
    other = Authority(tmp_path / "other", "another CA")
    theirs, their_key = other.sign("client", "DNS:client")
    server = TlsServer(tmp_path / "server", authority, cert, key, clients=True)
    ca = f"cacert={authority.file}"
    try:
        with lapse.Scheduler(server.at(f"{ca}&cert={mine}&key={my_key}"), workers=0) as s:
            assert s.schedule("o", 60, queue="q") > 0
        for options in (ca, f"{ca}&cert={theirs}&key={their_key}"):
            with pytest.raises(lapse.Offline, match="cannot be reached"):
                lapse.Scheduler(server.at(options))
    finally:
        server.stop()


def test_files_that_cannot_be_used_are_named(server, authority, tmp_path):
    ca = f"cacert={authority.file}"
    cert, key = authority.sign("mine", "DNS:client")
    _, another = authority.sign("another", "DNS:client")
    (tmp_path / "empty").write_text("")
    for options, words in (
        (f"cacert={tmp_path}/none", "option cacert"),
        (f"{ca}&cert={tmp_path}/empty&key={key}", "option cert"),
        (f"{ca}&cert={cert}&key={tmp_path}/none", "option cert"),
        (f"{ca}&cert={cert}&key={another}", "option cert"),
    ):
        with pytest.raises(lapse.System, match=words):
            lapse.Scheduler(server.at(options))
    with pytest.raises(lapse.BadUrl, match="go together"):
        lapse.Scheduler(server.at(f"{ca}&cert={cert}"))


def test_a_port_without_tls_is_not_waited_for(server, authority):
    with pytest.raises(lapse.Offline, match="cannot be reached"):
        lapse.Scheduler(server.at(f"cacert={authority.file}&timeout=2s", port=server.port))
    with pytest.raises(lapse.Offline):
        lapse.Scheduler(f"amqp://guest:guest@localhost:{server.tls_port}/?timeout=2s")


def test_a_password_is_never_shown(server, authority, tmp_path, capfd):
    other = Authority(tmp_path / "other", "another CA")
    texts = server_cases.are_refused(
        server.at(f"cacert={ca.file}", user="shop:s3cret%40") for ca in (authority, other)
    )
    server_cases.show_none_of(["s3cret"], texts, capfd)
