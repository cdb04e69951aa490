"""A proxy between a store and its server, which can fail in ways that a server does."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class Proxy:
    """Passes bytes on between clients and a port; can refuse, cut, stall, and change the port.

    `delay`: how many seconds each piece takes more.

    `cut_before`: the next client that says this is cut instead, once; `cut_after`: once it has
    been answered, which it is not told."""

    def __init__(self, port: int, url: str = "127.0.0.1:{}") -> None:
        self.target, self.named = port, url
        self.listener: socket.socket | None = None
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.lock = threading.Lock()
        self.stalled = False
        self.delay = 0.0
        self.cut_before: bytes | None = None
        self.cut_after: bytes | None = None
        self.port = 0
        self.accept()

    @property
    def url(self) -> str:
        return self.named.format(self.port)

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
                        select.select([], [], [], 0.01)  # sleeps: while it is stalled
                    if self.delay:
                        select.select([], [], [], self.delay)  # sleeps: as a slow network does
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
