"""What `bench/run core` runs: the C core beside other C libraries, one executable for each."""

import executables

LIBRARIES = ("lapse", "libev", "libevent", "libuv")

# Workload: groups of peers it runs by default, figures, and how figures are printed.
THROUGHPUT = ("throughput", "many", "fixed")
WORKLOADS = {
    "const": (THROUGHPUT, ("schedule_ns", "expire_ns", "bytes")),
    "random": (("throughput", "many"), ("schedule_ns", "expire_ns", "bytes")),
    "cancel": (("throughput", "fixed"), ("cancel_ns", "expire_ns", "bytes_after")),
    "threads": (("throughput", "fixed"), ("pair_2_threads_ns", "pair_1_thread_ns")),
    "longest": (("throughput", "fixed"), ("longest_us", "longest_cpu_us", "longest_move")),
    "late": (("late",), ("early", "min_ms", "p50_ms", "p99_ms", "p999_ms", "max_ms", "cpu_ms")),
}
TITLES = {
    "const": "{n} pending, every delay 30 minutes",
    "random": "{n} pending, delays 1 ms to 1 h",
    "cancel": "{n} pending, 90 % cancelled, then the rest expires",
    "threads": "{n} pending, cancel + schedule by two threads",
    "longest": "the longest call of schedule while growing to {n}",
    "late": "{n} orders due within 5 s, real time",
}
NO_RATIO = {"early", "min_ms", "longest_move", "max_ms", "p999_ms", "p99_ms"}
AGAINST = ()  # peers that get a table of ratios of their own, beside the best of all
SIZES = {"threads": ["1M"], "longest": ["1M", "10M"], "late": ["100k"]}
OTHER_SIZES = ["10k", "1M", "10M"]
QUICK_SIZES = ["100k"]
QUICK_PEERS = {"late": ("lapse-wheel", "lapse-heap", "libev", "libevent-precise", "libuv")}
FIXED_SIZES = {"late"}  # --sizes and --quick do not change them

BUILD = ("lapse_bench", ("-DLAPSE_BENCH=ON", "-DLAPSE_PYTHON=OFF"))


def find_peers(options, folder):
    return executables.find("core", LIBRARIES, options, folder, most={})
