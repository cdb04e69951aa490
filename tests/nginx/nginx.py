"""An nginx for the tests: its own folder, a port of the loopback interface, two workers.

It is started and stopped by its process id. Lua code is sent to it as the body of a request;
what it prints is the answer. LAPSE_BUILD_DIR is the build folder. LAPSE_NGINX_PRELOAD is what
nginx must preload, for a build with a sanitizer.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["LAPSE_BUILD_DIR"])
HERE = Path(__file__).parent
MODULES = Path("/usr/lib/nginx/modules")
LIMIT = 60.0  # seconds that anything may take on a busy machine

START = """
    local lapse = require "resty.lapse"
    local fired = require "fired"
    assert(lapse.start { dict = "lapse" })
    lapse.handle("fired", function(id) fired(id) end)
"""

CONF = """
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
daemon off;
master_process on;
worker_processes {workers};
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log notice;
env LAPSE_FIRED;
{main}
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 1m;
    client_body_buffer_size 1m;
    lua_package_path "{root}/lua/?.lua;{root}/lua/?/init.lua;{here}/?.lua;;";
    lua_package_cpath "{build}/lua/5.1/?.so;;";
    lua_shared_dict lapse 8m;
    {http}
    init_worker_by_lua_block {{ {init_worker} }}
    server {{
        listen 127.0.0.1:{port} reuseport;
        {server}
        location = /lua {{
            content_by_lua_block {{
                ngx.req.read_body()
                local code = assert(loadstring(ngx.req.get_body_data(), "=test"))
                local wanted = tonumber(ngx.var.http_x_worker)
                if wanted and wanted ~= ngx.worker.id() then
                    ngx.status = 421
                    return ngx.print "another worker"
                end
                ngx.print(code() or "")
            }}
        }}
    }}
}}
"""


def program() -> str:
    found = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    assert found, "nginx not found; scripts/packages test installs it"
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(holds: Callable[[], bool], what: str, limit: float = LIMIT) -> float:
    """Wait until something holds; how long it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit, f"not within {limit} s: {what}"
        time.sleep(0.005)  # sleeps: another process works
    return time.monotonic() - began


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def resident(pid: int) -> int:
    """Kilobytes of memory that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s*(\d+) kB", status, re.MULTILINE)[1])  # type: ignore[index]


class Nginx:
    def __init__(self, folder: Path, **parts: object) -> None:
        self.folder = folder
        self.fired_path = folder / "fired"
        self.parts = {
            "workers": 2, "connections": 256, "main": "", "http": "", "server": "",
            "init_worker": START, "user": "user root;" if os.geteuid() == 0 else "", **parts,
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    # -- Life --

    def write_conf(self) -> Path:
        conf = self.folder / "nginx.conf"
        conf.write_text(CONF.format(
            modules=MODULES, folder=self.folder, root=ROOT, here=HERE, build=BUILD, port=self.port,
            **self.parts,
        ))  # fmt: skip
        return conf

    def start(self) -> None:
        for _ in range(5):  # Somebody else may get the port first.
            self.port = free_port()
            conf = self.write_conf()
            environment = {**os.environ, "LAPSE_FIRED": str(self.fired_path)}
            if preload := os.environ.get("LAPSE_NGINX_PRELOAD"):
                environment["LD_PRELOAD"] = preload
            with open(self.folder / "output", "wb") as output:
                self.process = subprocess.Popen(
                    [program(), "-p", str(self.folder), "-c", str(conf),
                     "-e", str(self.folder / "error.log")],
                    stdout=output, stderr=output, env=environment,
                )  # fmt: skip
            if self.answers():
                return
            if "Address already in use" not in self.log():
                break
        raise AssertionError(f"nginx does not start:\n{self.log()}\n{self.output()}")

    def answers(self) -> bool:
        assert self.process
        began = time.monotonic()
        while self.process.poll() is None and time.monotonic() - began < LIMIT:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                if len(self.workers()) == self.parts["workers"]:
                    return True
            except OSError:
                pass
            time.sleep(0.01)  # sleeps: nginx starts
        return False

    def stop(self) -> None:
        process, self.process = self.process, None
        if not process:
            return
        for number in (signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
            try:
                process.wait(10)
                return
            except subprocess.TimeoutExpired:
                continue

    @property
    def master(self) -> int:
        assert self.process
        return self.process.pid

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.master}/task/{self.master}/children").read_text()
        return [pid for pid in map(int, children.split()) if is_alive(pid)]

    def reload(self) -> list[int]:
        """Load the configuration anew; the workers of before, when there are new ones."""
        before = self.workers()
        os.kill(self.master, signal.SIGHUP)
        eventually(
            lambda: len(set(self.workers()) - set(before)) == self.parts["workers"], "new workers"
        )
        return before

    # -- What it does --

    def lua(self, code: str, worker: int | None = None) -> str:
        """Run Lua code in a request, of one worker if that matters; what it returns or prints."""
        for _ in range(1000):
            status, text = self.request("/lua", code, worker)
            if status != 421:
                assert status == 200, f"{status}: {text}\n{self.log()}"
                return text
        raise AssertionError(f"no connection reached worker {worker}")

    def request(
        self, path: str, body: str = "", worker: int | None = None, port: int | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=LIMIT)
        try:
            headers = {} if worker is None else {"X-Worker": str(worker)}
            connection.request("POST" if body else "GET", path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def fired(self) -> list[str]:
        """What callbacks have written, a line each."""
        if not self.fired_path.exists():
            return []
        return self.fired_path.read_text().splitlines()

    def log(self) -> str:
        path = self.folder / "error.log"
        return path.read_text() if path.exists() else ""

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def check(self) -> None:
        """Nothing is in the log that must never be there."""
        bad = re.compile(r"\[emerg\]|exited on signal|exited with fatal|AddressSanitizer|open socket")
        for line in [*self.log().splitlines(), *self.output().splitlines()]:
            assert not bad.search(line), line


@contextmanager
def running(folder: Path, **parts: object) -> Iterator[Nginx]:
    nginx = Nginx(folder, **parts)
    try:
        nginx.start()
        yield nginx
    finally:
        nginx.stop()
    nginx.check()
