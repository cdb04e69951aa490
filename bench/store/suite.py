"""What `bench/run store` runs: the durable store beside others, one process for each run.

Its stores lie below LAPSE_BENCH_DIR (default: the build folder): the disk there is what is
measured.
"""

import atexit
import os
import pathlib
import shutil
import tempfile

import executables

KINDS = ("lapse", "beanstalkd", "sqlite", "disk")

CALLS = ("schedule_ns", "per_s", "p50_us", "p99_us")
CLAIMS = ("claim_ns", "per_s")
WORKLOADS = {
    "callers1": (("callers", "one"), CALLS),
    "callers16": (("callers",), CALLS),
    "callers64": (("callers",), CALLS),
    "many": (("many",), CALLS),
    "cancel": (("cancel",), ("cancel_ns", "per_s", "p50_us", "p99_us")),
    "work1": (("work",), CLAIMS),
    "work4": (("work",), CLAIMS),
    "processes": (("processes",), (*CLAIMS, "fairness_pct", "doubles")),
    "big": (("big",), ("disk_bytes", "rss_mb", "first_claim_ms", "claim_ns")),
}
TITLES = {
    "callers1": "{n} pending, one caller schedules random UUIDs",
    "callers16": "{n} pending, 16 callers schedule random UUIDs",
    "callers64": "{n} pending, 64 callers schedule random UUIDs",
    "many": "{n} pending, sequential ids and one delay, 100 a call",
    "cancel": "{n} pending, 64 callers cancel random UUIDs",
    "work1": "{n} pending, due orders claimed and settled by one thread",
    "work4": "{n} pending, due orders claimed and settled by 4 threads",
    "processes": "{n} pending, due orders claimed and settled by 4 processes",
    "big": "{n} pending, a consumer starts after kill -9",
}
NO_RATIO = {"per_s", "p50_us", "p99_us", "fairness_pct", "doubles"}
AGAINST = ("beanstalkd-f0", "beanstalkd", "sqlite", "disk")
SIZES = {"big": ["1M", "10M"]}
OTHER_SIZES = ["0", "1M"]
QUICK_SIZES = ["0", "100k"]
QUICK_PEERS = {}
FIXED_SIZES = set()
MOST = {"beanstalkd": {"big": 1000000}, "beanstalkd-f0": {"big": 1000000}}  # orders: all in memory

BUILD = ("lapse_bench_store", ("-DLAPSE_BENCH=ON", "-DLAPSE_PYTHON=OFF"))


def make_folder(options):
    """For the stores of all runs; removed at the end."""
    base = pathlib.Path(os.environ.get("LAPSE_BENCH_DIR", options.build)).resolve()
    base.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="stores-", dir=base)
    atexit.register(shutil.rmtree, folder)
    os.environ["LAPSE_BENCH_DIR"] = folder


def find_peers(options, folder):
    found = executables.find("store", KINDS, options, folder, MOST)
    make_folder(options)
    return found
