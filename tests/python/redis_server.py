"""A private redis-server for a test, a connection that knows its protocol, and a proxy before it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
from pathlib import Path

from support import PATIENCE

SCRIPT = Path(__file__).parent.parent / "servers" / "redis"


class Server:
    """One that ends with this process at the latest."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.url = self.start()
        self.port = int(self.url.rsplit(":", 1)[1].split("/")[0])

    def do(self, verb: str, *words: str) -> str:
        command = [str(SCRIPT), verb, str(self.folder), *words]
        # Into a file: the server that is started keeps what it inherits open.
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=2 * PATIENCE, check=True)
        return done.stdout.decode().strip()

    def start(self) -> str:
        return self.do("start", str(os.getpid()), *self.options)

    def kill(self) -> None:
        self.do("kill")

    def stop(self) -> None:
        self.do("stop")

    def ask(self, *words):
        """One command on a connection of its own."""
        with Connection(self.port) as c:
            return c.ask(*words)


class Connection:
    """As much of the protocol as tests need: it is no client of ours."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def send(self, *words) -> None:
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        text = b"*%d\r\n" % len(parts)
        self.socket.sendall(text + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))

    def read(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server has closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        return rest

    def ask(self, *words):
        self.send(*words)
        return self.read()


class Proxy:
    """Passes bytes on between clients and a port; can refuse, cut, stall, and change the port.

    `cut_before`: the next client that says this is cut instead, once; `cut_after`: once it has
    been answered, which it is not told."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listener: socket.socket | None = None
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.lock = threading.Lock()
        self.stalled = False
        self.cut_before: bytes | None = None
        self.cut_after: bytes | None = None
        self.port = 0
        self.accept()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def accept(self) -> None:
        """New connections are accepted (again)."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self.listener = listener
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def refuse(self) -> None:
        """Nobody is connected any more, and nobody can connect."""
        listener, self.listener = self.listener, None
        if listener:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    def cut(self) -> None:
        """Whoever is connected is not any more."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for s in pair:
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)

    def stall(self, stalled: bool = True) -> None:
        """What comes is not passed on."""
        self.stalled = stalled

    def close(self) -> None:
        self.refuse()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for s in (client, server):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.pairs.append((client, server))
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        is_last = False
        try:
            while True:
                for s in select.select([client, server], [], [])[0]:
                    data = s.recv(65536)
                    while self.stalled:
                        select.select([], [], [], 0.01)
                    if self.cut_before and self.cut_before in data and s is client:
                        self.cut_before = None
                        return
                    if not data or (is_last and s is server):
                        return
                    if self.cut_after and self.cut_after in data and s is client:
                        self.cut_after, is_last = None, True
                    other[s].sendall(data)
        except OSError:
            return
        finally:
            client.close()
            server.close()
