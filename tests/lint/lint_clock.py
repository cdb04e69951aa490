"""One keeper of "now": only core/base/clock.c reads a clock, and nothing waits by the wall's.

A thread may wait until an instant of CLOCK_MONOTONIC, with pthread_cond_clockwait or
pthread_mutex_clocklock. A binding, which sees the public header only, may read the scheduler's
own kind of clock.
"""

import re

from lint import main

KEEPERS = {"core/base/clock.c"}
READS = re.compile(
    r"\bCLOCK_(?:REALTIME|MONOTONIC)\w*|\b(?:clock_gettime|gettimeofday|timespec_get)\b"
    r"|(?<![\w.>])(?:time|clock|ftime)\s*\("
)
BOOTTIME = re.compile(r"\bclock_gettime\(CLOCK_BOOTTIME\b")
# Wait until an instant of the wall clock, which an administrator may step.
WAITS = re.compile(
    r"\b(?:pthread_cond_timedwait|sem_timedwait|pthread_mutex_timedlock"
    r"|pthread_rwlock_timed(?:rd|wr)lock|mtx_timedlock|cnd_timedwait|mq_timed\w+)\b"
)
MAY_WAIT = re.compile(r"\b(?:pthread_(?:cond_clockwait|mutex_clocklock)|sem_clockwait)\b")


def check(tree):
    for path in tree.files("core", "bindings", "tools", ext=(".c", ".h")):
        for number, line in tree.code(path):
            for match in WAITS.finditer(line):
                yield f"{path}:{number}: {match.group(0)} follows the wall clock"
            if path in KEEPERS or (path.startswith("bindings/") and BOOTTIME.search(line)):
                continue
            for match in READS.finditer(line):
                if match.group(0) == "CLOCK_MONOTONIC" and MAY_WAIT.search(line):
                    continue
                yield f"{path}:{number}: {match.group(0)} outside core/base/clock.c"


if __name__ == "__main__":
    main(check)
