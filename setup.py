"""Build of the Python extension: the glue and the core sources, one module for CPython 3.11+.

What describes the package stands in pyproject.toml; the version in core/include/lapse.h.

Environment variables, with the names of CMake's options where it has them:
    LAPSE_SQLITE=AUTO|ON|OFF   this store if pkg-config finds its library; always; never; the
    same with LAPSE_POSTGRESQL, LAPSE_REDIS, LAPSE_REDIS_TLS and LAPSE_RABBITMQ
    LAPSE_USE_SYSTEM=1         link the installed liblapse instead of building the core in
"""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

if sys.platform != "linux":
    raise SystemExit(f"lapse runs on Linux only for now; this is {sys.platform}.")

HEADER = Path(__file__).parent / "core" / "include" / "lapse.h"

# The same rule as in core/CMakeLists.txt.
CORE = [f"core/{folder}/*.c" for folder in ("base", "timer", "stores", "engine")]

# Stores on a client library: option, pkg-config's name of the library, sources, Debian package.
STORES = [
    ("SQLITE", "sqlite3 >= 3.35", "core/stores/sqlite*.c", "libsqlite3-dev"),
    ("POSTGRESQL", "libpq >= 14", "core/stores/postgresql*.c", "libpq-dev"),
    ("REDIS", "hiredis >= 0.14", "core/stores/redis*.c", "libhiredis-dev"),
    ("RABBITMQ", "librabbitmq >= 0.11", "core/stores/rabbitmq*.c", "librabbitmq-dev"),
]

# A free-threaded interpreter has no stable ABI; all others share one binary.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")


def version():
    """The version as lapse.h defines it."""
    pattern = r"^#define LAPSE_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)$"
    return ".".join(re.findall(pattern, HEADER.read_text(), re.MULTILINE))


def files(*patterns):
    return sorted(path for pattern in patterns for path in glob(pattern, recursive=True))


# The command-line tool is a function of the module; its main is Python's.
TOOL = [path for path in files("tools/lapse/*.c") if not path.endswith("/main.c")]


def pkg_config(*words):
    """What pkg-config prints, as words; None when it, or what it is asked for, is missing."""
    program = os.environ.get("PKG_CONFIG", "pkg-config")
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return shlex.split(done.stdout) if done.returncode == 0 else None


def wants(option):
    value = os.environ.get(option, "AUTO").upper()
    if value not in ("AUTO", "ON", "OFF"):
        raise SystemExit(f"{option} is AUTO, ON or OFF, not {value!r}.")
    return value


def add_store(build, name, library, pattern, debian):
    """Add a store to the build if it is wanted and can be had; its sources are left out else."""
    option, sources = f"LAPSE_{name}", files(pattern)
    wanted = wants(option)
    cflags = pkg_config("--cflags", library) if sources and wanted != "OFF" else None
    if cflags is not None:
        build["define_macros"].append((f"LAPSE_WITH_{name}", "1"))
        build["extra_compile_args"] += cflags
        build["extra_link_args"] += pkg_config("--libs", library)
        return
    if wanted == "ON" and not sources:
        raise SystemExit(f"{option}=ON: this store is not in version {version()}.")
    if wanted == "ON":
        raise SystemExit(f"{option}=ON: {library} not found; on Debian: apt-get install {debian}")
    build["sources"] = [path for path in build["sources"] if path not in sources]


def add_redis_tls(build):
    """TLS for Redis is a library of its own, which hiredis before 1.0 does not have."""
    wanted = wants("LAPSE_REDIS_TLS")
    has_redis = ("LAPSE_WITH_REDIS", "1") in build["define_macros"]
    modules = ("hiredis_ssl", "openssl")
    cflags = pkg_config("--cflags", *modules) if has_redis and wanted != "OFF" else None
    if cflags is not None:
        build["define_macros"].append(("LAPSE_WITH_REDIS_TLS", "1"))
        build["extra_compile_args"] += cflags
        build["extra_link_args"] += pkg_config("--libs", *modules)
    elif wanted == "ON":
        raise SystemExit(
            "LAPSE_REDIS_TLS=ON: hiredis_ssl or openssl not found; on Debian 13: "
            "apt-get install libhiredis-dev libssl-dev"
        )


def add_core(build):
    """The core is part of the module, and nothing of it is visible outside."""
    build["sources"] += files(*CORE)
    build["include_dirs"] += ["core/include", "core"]
    build["define_macros"].append(("LAPSE_STATIC", None))
    build["extra_link_args"].append("-pthread")
    for store in STORES:
        add_store(build, *store)
    add_redis_tls(build)


def add_system_library(build):
    """The module is linked with an installed liblapse of this version, or a later patch of it."""
    major, minor, _ = version().split(".")
    wanted = f"lapse >= {version()}"
    if pkg_config("--exists", f"{wanted} lapse < {major}.{int(minor) + 1}") is None:
        raise SystemExit(
            f"LAPSE_USE_SYSTEM=1: pkg-config does not find {wanted}, below "
            f"{major}.{int(minor) + 1}; is PKG_CONFIG_PATH set?"
        )
    build["extra_compile_args"] += pkg_config("--cflags", "lapse")
    build["extra_link_args"] += pkg_config("--libs", "lapse")


build = {
    "sources": files("bindings/python/*.c") + TOOL,
    "depends": files("core/**/*.h", "bindings/python/*.h", "tools/lapse/*.h"),
    "include_dirs": ["tools"],
    "define_macros": [("Py_LIMITED_API", "0x030b0000")] if STABLE_ABI else [],
    "extra_compile_args": ["-std=gnu11", "-fvisibility=hidden", "-pthread"],
    "extra_link_args": [],
}
if os.environ.get("LAPSE_USE_SYSTEM", "0") not in ("", "0"):
    add_system_library(build)
else:
    add_core(build)

setup(
    version=version(),
    license="MIT",
    ext_modules=[Extension("lapse._lapse", py_limited_api=STABLE_ABI, **build)],
    options={
        "bdist_wheel": {"py_limited_api": "cp311"} if STABLE_ABI else {},
        "build_ext": {"force": True},  # what was built before may have had other stores
    },
)
