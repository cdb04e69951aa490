"""How fast the workers of one nginx run what is due in a durable store, and how they share it.

    LAPSE_BUILD_DIR=build/bench python3 bench/openresty/drain.py [COUNT [URL [WORKERS]]]

COUNT orders (4000) are due when the workers begin. Their callbacks do nothing, or sleep for 5 ms as
one does that asks a server. Prints a JSON line for each: orders a second from the first start to
the last, and how many of them each worker ran. The URL is sqlite: in a folder of its own if none is
given.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "nginx"))

from nginx import eventually, running  # noqa: E402

START = """
    local lapse = require "resty.lapse"
    assert(lapse.start {{ url = "{url}" }})
    local ran = ngx.shared.lapse
    lapse.handle("bench", function()
        local now = lapse.now()
        {work}
        ran:add("first", now)
        ran:set("last", lapse.now())
        ran:incr(ngx.worker.id(), 1, 0)
        ran:incr("all", 1, 0)
    end)
    lapse.pause "bench"
"""
FILL = """
    local lapse = require "resty.lapse"
    for from = 1, {count}, 500 do
        local orders = {{}}
        for i = from, math.min({count}, from + 499) do
            orders[#orders + 1] = {{ id = ("drain-%09d"):format(i), queue = "bench" }}
        end
        assert(select(2, lapse.schedule_many(orders)) == #orders)
    end
    return "filled"
"""
WORK = {"nothing": "", "sleeps": "ngx.sleep(0.005)"}
GO = 'require("resty.lapse").resume "bench" return "goes"'
COUNT = 'return ngx.shared.lapse:get "all" or 0'
FIGURES = """
    local ran, shares = ngx.shared.lapse, {{}}
    for i = 0, {workers} - 1 do
        shares[#shares + 1] = ran:get(i) or 0
    end
    return ran:get "last" - ran:get "first" .. " " .. table.concat(shares, " ")
"""


def drain(count: int, url: str, workers: int, work: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        url = url or f"sqlite:///{folder}/orders.db"
        start = START.format(url=url, work=WORK[work])
        with running(Path(folder), workers=workers, init_worker=start) as nginx:
            assert nginx.lua(FILL.format(count=count)) == "filled"
            for worker in range(workers):
                assert nginx.lua(GO, worker) == "goes"
            eventually(lambda: int(nginx.lua(COUNT)) >= count, "all have run", 600)
            text = nginx.lua(FIGURES.format(workers=workers))
    seconds, *shares = text.split()
    return {"rate": round(count / float(seconds)), "shares": sorted(map(int, shares))}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    url = sys.argv[2] if len(sys.argv) > 2 else ""
    workers = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    for work in WORK:
        figures = drain(count, url, workers, work)
        print(json.dumps({"work": work, "n": count, "workers": workers, **figures}), flush=True)


if __name__ == "__main__":
    main()
