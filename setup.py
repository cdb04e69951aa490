"""Build of the Python extension: the glue and the core sources, one module for CPython 3.11+.

What describes the package stands in pyproject.toml; the version in core/include/lapse.h.
"""

import re
import sys
import sysconfig
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

if sys.platform != "linux":
    raise SystemExit(f"lapse runs on Linux only for now; this is {sys.platform}.")

HEADER = Path(__file__).parent / "core" / "include" / "lapse.h"


def version():
    """The version as lapse.h defines it."""
    parts = re.findall(
        r"^#define LAPSE_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)$", HEADER.read_text(), re.MULTILINE
    )
    return ".".join(parts)


# The same rule as in core/CMakeLists.txt.
CORE = [f"core/{folder}/*.c" for folder in ("base", "timer", "stores", "engine")]
RULES = (*CORE, "bindings/python/*.c", "tools/lapse/*.c")
SOURCES = sorted({path for rule in RULES for path in glob(rule)} - {"tools/lapse/main.c"})

# A free-threaded interpreter has no stable ABI; all others share one binary.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")

macros = [("LAPSE_STATIC", None)]
if STABLE_ABI:
    macros.append(("Py_LIMITED_API", "0x030b0000"))

setup(
    version=version(),
    license="MIT",
    ext_modules=[
        Extension(
            "lapse._lapse",
            sources=SOURCES,
            depends=sorted(glob("core/**/*.h", recursive=True) + glob("bindings/python/*.h") + glob("tools/lapse/*.h")),
            include_dirs=["core/include", "core", "tools"],
            define_macros=macros,
            extra_compile_args=["-std=gnu11", "-fvisibility=hidden"],
            libraries=["pthread"],
            py_limited_api=STABLE_ABI,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
)
