"""A private redis-server for a test, and a connection that knows its protocol."""

from __future__ import annotations

import socket

from private_server import PrivateServer
from support import PATIENCE


class Server(PrivateServer):
    script = "redis"
    fresh = "?prefix={}"

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
