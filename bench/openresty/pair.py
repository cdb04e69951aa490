"""What scheduling costs in the path of a request: locations of one nginx, asked in turns.

    LAPSE_BUILD_DIR=build/bench python3 bench/openresty/pair.py [ROUNDS [URL]]

`without` is what a shop's location does at least, and one without a database: it reads two query
arguments, makes an id, and answers a small JSON object by cjson. `schedule` and `put` schedule an
order under the id as well, and `again` is `without` once more: how far it is from 1 is what the
machine adds. `bare` makes an id and says one word; `bare-schedule` schedules, too. wrk asks each
for a second, with 32 connections, then the next; a round has an nginx of its own. What is compared
is within a round the worker's CPU time per request, which a busy machine changes for all, and the
requests per second. Prints a JSON line with the medians, and the quartiles of each ratio to the
same location without. With a URL such as
sqlite:////tmp/orders.db the request waits for the disk. count.py counts instructions instead.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable
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
        default_type application/json;
        content_by_lua_block {{
            local lapse, served = require "resty.lapse", package.loaded.served
            served[1] = served[1] + 1
            local id = ("request-%012d"):format(served[1])
            {work}
        }}
    }}
"""
ANSWER = """
    local args = ngx.req.get_uri_args()
    ngx.say(require("cjson").encode {
        order = id, item = args.item, count = tonumber(args.count), status = "unpaid", seconds = 1800,
    })
"""
SAY = 'ngx.say "placed"'
SCHEDULE = "assert(lapse.schedule(id, 1800, package.loaded.close_unpaid))"
PUT = 'assert(lapse.put { id = id, queue = "unpaid", delay = 1800 })'
# What each does, and which one it is compared with.
LOCATIONS = {
    "without": (ANSWER, "without"),
    "again": (ANSWER, "without"),
    "schedule": (SCHEDULE + ANSWER, "without"),
    "put": (PUT + ANSWER, "without"),
    "bare": (SAY, "bare"),
    "bare-schedule": (SCHEDULE + " " + SAY, "bare"),
}
QUERY = "?item=A-1704&count=2"


def server_of(names: Iterable[str]) -> str:
    return "".join(LOCATION.format(name=name, work=LOCATIONS[name][0]) for name in names)


def quartiles(key: str, each: list[dict[str, float]], others: list[dict[str, float]]) -> list[float]:
    ratios = [one[key] / other[key] for one, other in zip(each, others, strict=True)]
    return [round(part, 3) for part in statistics.quantiles(ratios, n=4)]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    url = sys.argv[2] if len(sys.argv) > 2 else "memory:"
    server = server_of(LOCATIONS)
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in LOCATIONS}
    parts = {"workers": 1, "connections": 1024, "server": server,
             "init_worker": START.format(url=url)}  # fmt: skip
    for number in range(rounds):
        # Anew, so that there are not millions of orders in the end.
        with tempfile.TemporaryDirectory() as folder, running(Path(folder), **parts) as nginx:
            for name in LOCATIONS:
                ask(nginx, 1, name + QUERY)  # LuaJIT has compiled afterwards.
            for name in sorted(LOCATIONS, reverse=number % 2 == 1):
                seen[name].append(ask(nginx, 1, name + QUERY))
    figures = {"url": url.split(":")[0], "rounds": rounds, "load": os.getloadavg()[0]}
    for name, each in seen.items():
        others = seen[LOCATIONS[name][1]]
        figures[name] = {
            **{key: round(statistics.median(one[key] for one in each), 2) for key in each[0]},
            **{f"{key}_ratio": quartiles(key, each, others) for key in ("cpu_us", "rps")},
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
