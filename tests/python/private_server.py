"""A server of tests/servers, for one test or one file of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support import PATIENCE

SCRIPTS = Path(__file__).parent.parent / "servers"


class PrivateServer:
    """One that ends with this process at the latest."""

    script = ""

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

    def kill(self) -> None:
        self.do("kill")

    def stop(self) -> None:
        self.do("stop")
