"""Each lint bites: in a small tree it finds what is wrong, and only that."""

import importlib
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from lint import Tree, strip_c  # noqa: E402

HEADER = """#define LAPSE_VERSION_MAJOR 3
#define LAPSE_VERSION_MINOR 14
#define LAPSE_VERSION_PATCH 15
"""
CALLS = """LAPSE_API int64_t lapse_schedule(lapse *s);
LAPSE_API void lapse_free(void *memory);
"""
SCHEDULER = "class Scheduler:\n    def schedule(self): ...\n    def orders(self): ...\n"
LUA = """---@class lapse.Scheduler
---@field schedule fun(self): integer?
local Scheduler = core.methods
function Scheduler:each(state)
"""
NAMES = "Same:\n\n`schedule`.\n\nNot: `orders`, `each`, `lapse_free`\n"
SLEEP = "sleep"  # in pieces, so that no other check trips over this file
HOME = "/ho" + "me/"

# lint, path, text, what the finding says; None: nothing is wrong.
CASES = [
    ("includes", "core/engine/a.c", '#include "stores/store.h"\n', None),
    ("includes", "core/engine/a.c", '#include "timer/timer.h"\n', ":1: may not include"),
    ("includes", "core/engine/a.c", '#include "../timer/timer.h"\n', ":1: may not include"),
    ("includes", "core/engine/a.c", '/* #include "timer/timer.h" */\n', None),
    ("includes", "core/stores/memory.c", '#include "timer/timer.h"\n', None),
    ("includes", "core/stores/redis.c", '#include "timer/timer.h"\n', "may not include"),
    ("includes", "core/base/a.c", '\n#include "stores/store.h"\n', ":2: may not include"),
    ("includes", "core/timer/a.c", '#include "base/clock.h"\n', None),
    ("includes", "bindings/lua/a.c", "#include <lapse.h>\n", None),
    ("includes", "bindings/lua/a.c", '#include "base/clock.h"\n', "may not include"),
    ("includes", "examples/c/a.c", '#include "nowhere.h"\n', "no file nowhere.h"),
    ("includes", "core/other/a.c", "", "in no folder"),
    ("includes", "tools/lapse/a.c", "#include <lapse.h>\n", None),
    ("includes", "tools/lapse/a.c", '#include "base/clock.h"\n', "may not include"),
    ("includes", "bindings/python/a.c", "#include <lapse/cli.h>\n", None),
    ("includes", "bindings/python/a.c", "#include <lapse/tool.h>\n", "may not include"),
    ("includes", "bindings/lua/a.c", "#include <lapse/cli.h>\n", "may not include"),
    ("clock", "core/base/clock.c", "clock_gettime(CLOCK_REALTIME, &t);\n", None),
    ("clock", "core/engine/a.c", "clock_gettime(id, &t);\n", ":1: clock_gettime outside"),
    ("clock", "core/engine/a.c", "f(CLOCK_REALTIME);\n", "CLOCK_REALTIME outside"),
    ("clock", "core/engine/a.c", "now = time(NULL);\n", "outside"),
    ("clock", "core/engine/a.c", "s->time(x); run_time(y);\n", None),
    ("clock", "core/engine/a.c", "/* CLOCK_REALTIME */ f(\"CLOCK_REALTIME\");\n", None),
    ("clock", "core/engine/a.c", "pthread_cond_clockwait(&c, &m, CLOCK_MONOTONIC, &t);\n", None),
    ("clock", "core/engine/a.c", "f(CLOCK_MONOTONIC);\n", "CLOCK_MONOTONIC outside"),
    ("clock", "core/base/clock.c", "pthread_cond_timedwait(&c, &m, &t);\n", "follows the wall"),
    ("clock", "bindings/lua/a.c", "clock_gettime(CLOCK_BOOTTIME, &t);\n", None),
    ("clock", "bindings/lua/a.c", "clock_gettime(id, &t);\n", "outside"),
    ("quiet", "core/engine/a.c", 'snprintf(b, n, "exit(1)"); assert(x);\n', None),
    ("quiet", "core/engine/a.c", 'printf("x");\n', "printf in the library"),
    ("quiet", "core/engine/a.c", "s->exit(1); lapse_exit(1);\n", None),
    ("quiet", "core/engine/a.c", "abort();\n", "abort in the library"),
    ("quiet", "core/engine/a.c", "f(stderr);\n", "stderr in the library"),
    ("quiet", "core/engine/a.c", f"nano{SLEEP}(&t);\n", f"nano{SLEEP} in the library"),
    ("quiet", "bindings/lua/a.c", f"nano{SLEEP}(&t);\n", None),
    ("sleep", "tests/core/test_a.c", f"u{SLEEP}(10);\n", ":1: sleeps without"),
    ("sleep", "tests/core/test_a.c", f"/* sleeps: the kernel's timer */\n{SLEEP}(1);\n", None),
    ("sleep", "tests/core/test_a.c", f"/* u{SLEEP}(10) */ a{SLEEP}(1);\n", None),
    ("sleep", "tests/core/test_a.c", f"int clock_nano{SLEEP}(clockid_t c) {{\n", None),
    ("sleep", "tests/core/test_a.c", f"clock_nano{SLEEP}(c);\n", "sleeps without"),
    ("sleep", "tests/core/test_a.c", "poll(NULL, 0, 100);\n", "sleeps without"),
    ("sleep", "tests/core/test_a.c", "poll(fds, 1, 100);\n", None),
    ("sleep", "tests/python/test_a.py", f"time.{SLEEP}(1)\n", "sleeps without"),
    ("paths", "python/a.py", f"open('{HOME}me/x')\n", "names"),
    ("paths", "python/a.py", "open('/usr/share/x'); a/home/b\n", None),
    ("version", "setup.py", "VERSION = '3.14.15'\n", ":1: writes the version"),
    ("version", "setup.py", "v = '3.14.1', '13.14.15'\n", None),
    ("version", "CHANGELOG.md", "## 3.14.1\n", "says nothing about 3.14.15"),
    ("rockspec", "lua/lapse-scm-1.rockspec", 'version = "scm-1" -DLAPSE_LUA\n', None),
    ("rockspec", "lua/lapse-scm-1.rockspec", 'version = "0.1-1"\n', "is not scm-1"),
    ("rockspec", "lua/lapse-scm-1.rockspec", 'version = "scm-1" -DLAPSE_X\n', "no option LAPSE_X"),
]

OPM = """# A comment
name = a
abstract = b
author = c
is_original = yes
license = mit
lib_dir = core
doc_dir = core
main_module = CHANGELOG.md
requires = luajit
"""
CASES += [
    ("names", "docs/names.md", NAMES, None),
    ("names", "docs/names.md", NAMES.replace("`lapse_free`", ""), "lacks C's lapse_free"),
    ("names", "docs/names.md", NAMES.replace("`orders`", ""), "lacks Python's orders"),
    ("names", "docs/names.md", NAMES.replace("`each`", ""), "lacks Lua's each"),
    ("names", "docs/names.md", NAMES + "`lapse_open(url)`", "there is no lapse_open"),
    ("names", "docs/names.md", NAMES.replace("e`.", "e`, `free`."), 
     "free is the same everywhere, it says: not in Python, Lua"),
    ("opm", "dist.ini", OPM, None),
    ("opm", "dist.ini", OPM.replace("license", "licence"), "lacks license"),
    ("opm", "dist.ini", OPM.replace("lib_dir = core", "lib_dir = lib"), "lib_dir = lib: it is not"),
    ("opm", "dist.ini", OPM + "version = 3.14\n", "names a version"),
]


class Lints(unittest.TestCase):
    def tree(self, folder, path, text):
        """A small tree that is in order, but for the one file."""
        files = {
            "core/include/lapse.h": HEADER + CALLS,
            "python/lapse/_lapse.pyi": SCHEDULER,
            "python/lapse/_scheduler.py": "",
            "lua/lapse/init.lua": LUA,
            "docs/names.md": NAMES,
            "core/base/clock.h": "",
            "core/timer/timer.h": "",
            "core/stores/store.h": "",
            "tools/lapse/cli.h": "",
            "tools/lapse/tool.h": "",
            "CHANGELOG.md": "## 3.14.15\n",
            "CMakeLists.txt": "LAPSE_LUA",
            "bindings/CMakeLists.txt": "",
            path: text,
        }
        for name, content in files.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(content)
        return Tree(folder)

    def test_cases(self):
        for lint, path, text, expected in CASES:
            with self.subTest(lint=lint, text=text), tempfile.TemporaryDirectory() as folder:
                check = importlib.import_module(f"lint_{lint}").check
                found = list(check(self.tree(folder, path, text)))
                if expected is None:
                    self.assertEqual(found, [])
                else:
                    self.assertEqual(len(found), 1, found)
                    self.assertIn(expected, found[0])
                    self.assertTrue(found[0].startswith(path), found[0])

    def test_every_lint_has_a_case(self):
        lints = {p.stem.removeprefix("lint_") for p in Path(__file__).parent.glob("lint_*.py")}
        self.assertEqual(lints, {case[0] for case in CASES})

    def test_lines_stay_where_they_are(self):
        code = 'a /* x\ny */ b("// no", \'"\') // end\nc'
        self.assertEqual(strip_c(code).split("\n"), ["a  ", ' b("", "")  ', "c"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
