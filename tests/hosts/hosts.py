"""Real servers for the tests: started on a free port of loopback, in a folder of their own,
with the shops of examples/python; stopped by process id.

A server that did not end by itself when it was asked, or that wrote a traceback, fails its test.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
PATIENCE = 60.0  # seconds until a test gives up on something that must happen


def until(what: str, holds: Callable[[], object]) -> None:
    """Wait until it holds. sleeps: a server in another process is waited for."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"still waiting: {what}"
        time.sleep(0.01)  # sleeps: as said


@dataclass(frozen=True)
class Host:
    """How a shop is served."""

    shop: str  # folder in examples/python
    options: tuple[str, ...]
    table: str = "orders"
    workers: int = 1

    @property
    def forks(self) -> bool:
        return self.shop != "fastapi_shop"

    @property
    def command(self) -> list[str]:
        if not self.forks:
            return [sys.executable, "-m", "uvicorn", "app:app", "--port", "0", *self.options]
        return [
            sys.executable, "-m", "gunicorn", "with_pid", "--bind", "127.0.0.1:0",
            "--workers", str(self.workers), "--graceful-timeout", "20", *self.options,
        ]  # fmt: skip


HOSTS = {
    "flask-sync": Host("flask_shop", ()),
    "flask-gthread": Host("flask_shop", ("--threads", "4")),
    "flask-two": Host("flask_shop", (), workers=2),
    "flask-four": Host("flask_shop", ("--threads", "2"), workers=4),
    "flask-preload": Host("flask_shop", ("--preload",), workers=2),
    "django-sync": Host("django_shop", (), "shop_order"),
    "django-two": Host("django_shop", ("--threads", "4"), "shop_order", 2),
    "django-preload": Host("django_shop", ("--threads", "4", "--preload"), "shop_order", 2),
    "fastapi-asyncio": Host("fastapi_shop", ("--loop", "asyncio")),
    "fastapi-uvloop": Host("fastapi_shop", ("--loop", "uvloop")),
}


@dataclass
class Answer:
    status: int
    body: dict[str, str]
    worker: int | None

    @property
    def id(self) -> str:
        return self.body["id"]


@dataclass
class Server:
    host: Host
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()  # beyond the host's

    def __post_init__(self) -> None:
        self.db = self.folder / "shop.db"
        self.log = self.folder / "server.log"
        self.environment = os.environ | {
            "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{Path(__file__).parent}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOSTS_APP": "wsgi:application" if self.host.table == "shop_order" else "app:app",
            "SHOP_DB": str(self.db),
            "LAPSE_URL": "memory:",
            **self.settings,
        }
        self.start()

    # -- Life ------------------------------------------------------------------------

    def start(self) -> None:
        cwd = EXAMPLES / self.host.shop
        if self.host.table == "shop_order":
            migrate = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
            subprocess.run(migrate, cwd=cwd, env=self.environment, check=True)
        with open(self.log, "ab") as log:
            self.from_byte = log.tell()
            self.process = subprocess.Popen(
                [*self.host.command, *self.options], cwd=cwd, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        until("the server listens", self._find_port)
        if self.host.forks:
            until("it has its workers", lambda: len(self.workers()) == self.host.workers)
        until("a worker answers", self._answers)
        self._watch_changes()

    def said(self) -> str:
        return self.log.read_bytes()[self.from_byte :].decode()

    def _find_port(self) -> bool:
        assert self.process.poll() is None, self.said()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.said())
        self.port = int(found[1]) if found else 0
        return bool(found)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.said()
        with suppress(OSError):
            return self.get("none").status == 404
        return False

    def workers(self) -> set[int]:
        pid = self.process.pid
        return {int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    @contextmanager
    def only(self, worker: int) -> Iterator[None]:
        """Meanwhile all requests reach this worker: the others stand still."""
        others = self.workers() - {worker}
        for pid in others:
            self.signal(signal.SIGSTOP, pid)
        try:
            yield
        finally:
            for pid in others:
                self.signal(signal.SIGCONT, pid)

    def threads(self, pid: int) -> int:
        return len(os.listdir(f"/proc/{pid}/task"))

    def signal(self, number: int, pid: int | None = None) -> None:
        os.kill(pid or self.process.pid, number)

    def stop(self) -> None:
        """Ask it to end; it does, with nothing to complain about."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self.said()
        self._check_said()

    def kill(self) -> None:
        """The whole machine fails."""
        pids = {self.process.pid, *self.workers()}
        for pid in pids:
            with suppress(ProcessLookupError):
                self.signal(signal.SIGKILL, pid)
        self.process.wait(PATIENCE)
        until("its workers are gone", lambda: not any(map(runs, pids)))

    def end(self) -> None:
        """Whatever happened: nothing of it is left."""
        if self.process.poll() is not None:
            return
        try:
            self.stop()
        finally:
            if self.process.poll() is None:
                self.kill()

    def _check_said(self) -> None:
        said = self.said()
        assert "Traceback" not in said and "Fatal" not in said and "ERROR" not in said, said

    # -- The shop ----------------------------------------------------------------------

    def ask(self, method: str, path: str) -> Answer:
        """One request on a connection of its own, so that any worker may get it."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as c:
            c.request(method, path)
            answer = c.getresponse()
            content = answer.read()
        worker = answer.headers.get("X-Worker")
        body = json.loads(content) if answer.headers.get_content_subtype() == "json" else {}
        return Answer(answer.status, body, int(worker) if worker else None)

    def place(self) -> Answer:
        answer = self.ask("POST", "/orders")
        assert answer.status == 201 and answer.body["status"] == "open", answer
        return answer

    def pay(self, order_id: str) -> Answer:
        return self.ask("POST", f"/orders/{order_id}/pay")

    def get(self, order_id: str) -> Answer:
        return self.ask("GET", f"/orders/{order_id}")

    def status(self, order_id: str) -> str:
        return self.get(order_id).body["status"]

    def until_closed(self, *order_ids: str) -> None:
        for order_id in order_ids:
            until(f"{order_id} is closed", lambda i=order_id: self.status(i) == "closed")

    # -- Its database ------------------------------------------------------------------

    def sql(self, text: str) -> list[tuple]:
        with closing(sqlite3.connect(self.db, timeout=30, isolation_level=None)) as db:
            return db.execute(text).fetchall()

    def _watch_changes(self) -> None:
        """Every change of an order's status leaves a row."""
        self.sql("CREATE TABLE IF NOT EXISTS changes (id TEXT, status TEXT)")
        self.sql(
            f"CREATE TRIGGER IF NOT EXISTS change AFTER UPDATE ON {self.host.table} BEGIN"
            " INSERT INTO changes VALUES (NEW.id, NEW.status); END"
        )

    def changes(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for order_id, status in self.sql("SELECT id, status FROM changes"):
            found.setdefault(order_id, []).append(status)
        return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


Serve = Callable[..., Server]


def serving(folder: Path) -> Iterator[Serve]:
    """A function that starts servers; at the end all are stopped."""
    servers: list[Server] = []

    def serve(name: str, *options: str, **settings: str) -> Server:
        place = folder / str(len(servers))
        place.mkdir()
        server = Server(HOSTS[name], place, settings, options)
        servers.append(server)
        return server

    try:
        yield serve
    finally:
        for server in servers:
            server.end()
