"""A server of tests/servers, for one test or one file of them."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
from pathlib import Path

from proxy import Proxy
from support import PATIENCE, until

SCRIPTS = Path(__file__).parent.parent / "servers"


class PrivateServer:
    """One that ends with this process at the latest."""

    script = ""
    fresh = ""  # what follows its URL for the store of a name
    numbers = itertools.count(1)

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.url = self.start()

    def do(self, verb: str, *words: str) -> str:
        command = [str(SCRIPTS / self.script), verb, str(self.folder), *words]
        # Into a file: the server that is started keeps what it inherits open.
        path = self.folder.parent / f"{self.folder.name}.said"
        with path.open("w") as out:
            subprocess.run(command, stdout=out, timeout=4 * PATIENCE, check=True)
        return path.read_text().strip()

    def start(self) -> str:
        return self.do("start", str(os.getpid()), *self.options)

    @property
    def port(self) -> int:
        return port_of(self.url)

    def place(self) -> str:
        """The URL of a fresh store."""
        return self.url + self.fresh.format(f"store{next(self.numbers):04}")

    def proxy(self) -> Proxy:
        """One before it, whose URL has all but the port of its own."""
        return Proxy(self.port, self.url.replace(f":{self.port}/", ":{}/"))

    def kill(self) -> None:
        self.do("kill")

    def stop(self) -> None:
        self.do("stop")


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])


def start_and_be_killed(script: str, folder: Path) -> None:
    """A process that starts a server is killed, with its group: the server ends."""
    said = folder.parent / f"{folder.name}.said"
    start = 'touch "$2"; "$0" start "$1" $$ >"$2" && exec tail -f /dev/null'
    process = subprocess.Popen(
        ["sh", "-c", start, str(SCRIPTS / script), str(folder), str(said)], start_new_session=True
    )
    try:
        until(lambda: said.exists() and said.read_text().endswith("\n") or process.poll(), "the start")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    port = port_of(said.read_text())
    until(lambda: not answers(port), "the end of the server")


def answers(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
