"""A private PostgreSQL for a test, and PgBouncer before it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from private_server import PrivateServer, answers, port_of
from support import PATIENCE, free_port


class Server(PrivateServer):
    script = "postgresql"
    fresh = "?schema={}"


class Pool:
    """PgBouncer before a server, in one of its modes."""

    def __init__(self, server: Server, mode: str) -> None:
        self.port = free_port()
        # Where its user can reach it: pytest closes its own folders to others.
        folder = self.folder = Path(tempfile.mkdtemp(prefix="lapse-pool-", dir="/tmp"))
        config = folder / "pgbouncer.ini"
        users = folder / "users.txt"
        users.write_text('"postgres" ""\n')
        config.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={server.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"unix_socket_dir =\nauth_type = any\nauth_file = {users}\npool_mode = {mode}\n"
            f"max_client_conn = 100\ndefault_pool_size = 20\nserver_reset_query = DISCARD ALL\n"
        )
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        command = [program, str(config)]
        if os.getuid() == 0:  # It refuses root, as the server does.
            shutil.chown(folder, "postgres")
            for path in (config, users):
                shutil.chown(path, "postgres")
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        bare = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # a sanitizer is ours
        self.process = subprocess.Popen(
            command, env=bare, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if answers(self.port):
                return
            if self.process.poll() is not None:
                raise RuntimeError("pgbouncer has ended")
            time.sleep(0.02)  # sleeps: a program starts
        raise RuntimeError("pgbouncer does not answer")

    def url(self, url: str) -> str:
        """The same store, through the pool."""
        return url.replace(f":{port_of(url)}/", f":{self.port}/", 1)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder)
