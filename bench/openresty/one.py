"""One nginx with one worker, one peer, one workload, one size: prints one JSON line.

    LAPSE_BUILD_DIR=build/bench python3 bench/openresty/one.py ngx.timer const 100000 [SEED]

measure.lua is what runs in nginx. For `request` wrk asks for a location, with 32 connections on one
thread, for five seconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "nginx"))

from nginx import Nginx, running  # noqa: E402

HTTP = "lua_max_pending_timers 4000000; lua_max_running_timers 4096;"
START = 'assert(require("resty.lapse").start())'
SERVER = """
    location = /order {
        content_by_lua_block {
            local on_request = require "on_request"
            local served = package.loaded.served or 0
            package.loaded.served = served + 1
            on_request(("request-%012d"):format(served))
            ngx.say "placed"
        }
    }
"""
UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def microseconds(output: str, share: str) -> float:
    value, unit = re.search(rf"^ +{share} +([\d.]+)(us|ms|s)$", output, re.M).groups()  # type: ignore[union-attr]
    return float(value) * UNITS[unit]


def cpu_seconds(pid: int) -> float:
    """CPU time that the threads of a process have used."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def ask(nginx: Nginx, seconds: int, location: str = "order") -> dict[str, float]:
    command = ["wrk", "-t1", "-c32", f"-d{seconds}", "--latency",
               f"http://127.0.0.1:{nginx.port}/{location}"]  # fmt: skip
    before = cpu_seconds(nginx.workers()[0])
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    spent = cpu_seconds(nginx.workers()[0]) - before
    if "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(output + nginx.log())
    rate = float(re.search(r"Requests/sec: +([\d.]+)", output)[1])  # type: ignore[index]
    requests = int(re.search(r"^ +(\d+) requests in", output, re.M)[1])  # type: ignore[index]
    return {
        "rps": rate,
        "cpu_us": 1e6 * spent / requests,
        "p50_us": microseconds(output, "50%"),
        "p99_us": microseconds(output, "99%"),
    }


def measure(peer: str, workload: str, count: int, seed: int) -> dict[str, float]:
    names = f"local peer, workload, count, seed = {peer!r}, {workload!r}, {count}, {seed}\n"
    with tempfile.TemporaryDirectory() as folder, running(
        Path(folder), workers=1, connections=1024, http=HTTP, server=SERVER, init_worker=START
    ) as nginx:
        text = nginx.lua(names + (HERE / "measure.lua").read_text())
        figures = {name: float(value) for name, value in map(str.split, text.splitlines())}
        if workload == "request":
            ask(nginx, 1)  # LuaJIT has compiled afterwards.
            figures = ask(nginx, 5)
        end(nginx)
        return figures


def end(nginx: Nginx) -> None:
    """At once: a million timers that expire before their time would take a while."""
    process, nginx.process = nginx.process, None
    assert process
    process.terminate()
    process.wait()


def main() -> None:
    peer, workload, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    figures = measure(peer, workload, count, seed)
    print(json.dumps({"peer": peer, "workload": workload, "n": count, **figures}))


if __name__ == "__main__":
    main()
