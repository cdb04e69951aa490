"""What scheduling costs in the path of a request: locations of one nginx, asked in turns.

    LAPSE_BUILD_DIR=build/bench python3 bench/openresty/pair.py [ROUNDS [URL]]

All of them make an id and answer; `schedule` and `put` schedule an order under it as well, and
`again` is `without` once more: how far it is from 1 is what the machine adds. wrk asks each for a
second, with 32 connections, then the next; what is compared is the worker's CPU time per request
within a round, so that a busy machine counts for all. Prints a JSON line with the medians, and the
quartiles of each ratio to `without`. With a URL such as sqlite:////tmp/orders.db the request
waits for the disk.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "nginx")]

from nginx import running  # noqa: E402
from one import ask  # noqa: E402

START = """
    local lapse = require "resty.lapse"
    assert(lapse.start {{ url = "{url}" }})
    local function close_unpaid() end
    lapse.handle("unpaid", close_unpaid)
    package.loaded.served, package.loaded.close_unpaid = {{ 0 }}, close_unpaid
"""
LOCATION = """
    location = /{name} {{
        content_by_lua_block {{
            local lapse, served = require "resty.lapse", package.loaded.served
            served[1] = served[1] + 1
            local id = ("request-%012d"):format(served[1])
            {schedule}
            ngx.say "placed"
        }}
    }}
"""
CALLS = {
    "without": "",
    "again": "",
    "schedule": "assert(lapse.schedule(id, 1800, package.loaded.close_unpaid))",
    "put": 'assert(lapse.put { id = id, queue = "unpaid", delay = 1800 })',
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    url = sys.argv[2] if len(sys.argv) > 2 else "memory:"
    server = "".join(LOCATION.format(name=name, schedule=call) for name, call in CALLS.items())
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in CALLS}
    with tempfile.TemporaryDirectory() as folder, running(
        Path(folder), workers=1, connections=1024, server=server, init_worker=START.format(url=url)
    ) as nginx:
        for name in CALLS:
            ask(nginx, 1, name)  # LuaJIT has compiled afterwards.
        for number in range(rounds):
            for name in sorted(CALLS, reverse=number % 2 == 1):
                seen[name].append(ask(nginx, 1, name))
    figures = {"url": url.split(":")[0], "rounds": rounds, "load": os.getloadavg()[0]}
    for name, each in seen.items():
        ratios = [a["cpu_us"] / b["cpu_us"] for a, b in zip(each, seen["without"], strict=True)]
        quartiles = statistics.quantiles(ratios, n=4)
        figures[name] = {
            **{key: round(statistics.median(one[key] for one in each), 2) for key in each[0]},
            "ratio": [round(part, 3) for part in quartiles],
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
