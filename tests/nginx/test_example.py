# tiers: full
"""examples/lua/openresty as its reader runs it, and the configuration in docs/openresty.md."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nginx import BUILD, LIMIT, MODULES, ROOT, eventually, free_port, program, running

EXAMPLE = ROOT / "examples" / "lua" / "openresty"
PATHS = f'"$prefix/?.lua;{ROOT}/lua/?.lua;{ROOT}/lua/?/init.lua;;";\n'
CPATH = f'    lua_package_cpath "{BUILD}/lua/5.1/?.so;;";'


class Shop:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        shutil.copy(EXAMPLE / "shop.lua", folder)
        conf = (EXAMPLE / "nginx.conf").read_text()
        # Where this machine has the module, a free port, and less time to pay.
        for there, here in (
            ('"$prefix/?.lua;;";', PATHS + CPATH),
            ("127.0.0.1:8080;", f"127.0.0.1:{self.port};"),
            ("start(30 * 60)", "start(2)"),
        ):
            assert conf.count(there) == 1, there
            conf = conf.replace(there, here)
        (folder / "nginx.conf").write_text(conf)
        modules = "".join(
            f"load_module {MODULES}/{name}_module.so; " for name in ("ndk_http", "ngx_http_lua")
        )
        user = "user root; " if os.geteuid() == 0 else ""
        environment = dict(os.environ)
        if preload := os.environ.get("LAPSE_NGINX_PRELOAD"):
            environment["LD_PRELOAD"] = preload
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program(), "-p", str(folder), "-c", "nginx.conf", "-g", modules + user],
                stdout=log, stderr=log, env=environment,
            )  # fmt: skip
        eventually(self.is_up, "the shop opens")

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.ask("GET", "/orders/none")[0] == 404
        except OSError:
            return False

    def ask(self, method: str, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode().strip()
        finally:
            connection.close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(LIMIT)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    try:
        yield shop
    finally:
        shop.stop()


def test_the_shop(shop: Shop) -> None:
    names = [f"OID{number:08d}" for number in range(20)]
    began = time.monotonic()
    for name in names:
        assert shop.ask("POST", f"/orders/{name}") == (201, "placed")
    assert shop.ask("POST", f"/orders/{names[0]}") == (409, "placed before")
    for name in names[::2]:
        assert shop.ask("POST", f"/orders/{name}/pay") == (200, "paid")
    os.kill(shop.process.pid, signal.SIGHUP)
    eventually(lambda: shop.ask("GET", f"/orders/{names[-1]}") == (200, "closed"), "it is closed")
    assert time.monotonic() - began >= 2
    for number, name in enumerate(names):
        wanted = "closed" if number % 2 else "paid"
        eventually(lambda: shop.ask("GET", f"/orders/{name}") == (200, wanted), f"{name} {wanted}")
    assert shop.ask("POST", f"/orders/{names[1]}/pay") == (409, "closed")
    assert shop.ask("POST", "/orders/none/pay") == (404, "no such order")
    log = shop.log.read_text()
    assert sorted(re.findall(r"(OID\d+) was not paid in time", log)) == names[1::2]
    assert "[error]" not in log and "[alert]" not in log


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "openresty.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_configuration_in_the_docs(tmp_path: Path) -> None:
    """The first block is what is inside a http block, but for the paths; the Lua block runs."""
    conf = blocks("nginx")[0]
    assert "lua_shared_dict lapse" in conf and conf.count("listen 8080;") == 1
    conf = re.sub(r"lua_(shared_dict lapse|package_c?path) .*\n", "", conf)
    port = free_port()
    conf = conf.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    own, rest = re.search(r"init_worker_by_lua_block \{\n(.*?)\n\}\n(.*)", conf, re.DOTALL).groups()  # type: ignore[union-attr]
    with running(tmp_path, workers=1, init_worker=own, http=rest) as nginx:
        assert nginx.request("/order?id=OID1", port=port) == (200, "placed\n")
        assert nginx.request("/order?id=OID1", port=port)[1].startswith("Exists: ")
        state = 'local info = require("resty.lapse").get "OID1" return info.state .. info.queue'
        assert nginx.lua(state) == "pendingclose_unpaid"
        assert nginx.request("/pay?id=OID1", port=port) == (200, "true\n")
        for block in blocks("lua"):
            nginx.lua(block)
