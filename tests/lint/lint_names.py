"""docs/names.md is whole: each public name of C, Python and Lua stands there, and no other."""

import ast
import re

from lint import main

PAGE = "docs/names.md"
C_CALL = re.compile(r"^LAPSE_API [\w ]*[ *](lapse_\w+)\(", re.MULTILINE)
C_NAME = re.compile(r"\blapse_\w+\b")
LUA_FIELD = re.compile(r"^---@field (\w+) fun\(self", re.MULTILINE)
LUA_METHOD = re.compile(r"^function Scheduler:(\w+)", re.MULTILINE)
PYTHON = ("python/lapse/_lapse.pyi", "python/lapse/_scheduler.py")


def c_calls(tree):
    headers = [tree.text(path) for path in tree.files("core/include", ext=(".h",))]
    return {name for text in headers for name in C_CALL.findall(text)}, "\n".join(headers)


def python_methods(tree):
    """The public ones of lapse.Scheduler."""
    for path in PYTHON:
        for thing in ast.parse(tree.text(path)).body:
            if isinstance(thing, ast.ClassDef) and thing.name == "Scheduler":
                yield from (
                    f.name for f in thing.body
                    if isinstance(f, ast.FunctionDef) and not f.name.startswith("_")
                )  # fmt: skip


def lua_methods(tree):
    """Those of lapse.Scheduler."""
    text = tree.text("lua/lapse/init.lua")
    described = text.partition("---@class lapse.Scheduler\n")[2].partition("\nlocal ")[0]
    return {*LUA_FIELD.findall(described), *LUA_METHOD.findall(text)}


def check(tree):
    page = tree.text(PAGE)
    quoted = {word for text in re.findall(r"`([^`]+)`", page) for word in re.findall(r"\w+", text)}
    same = set(re.findall(r"`(\w+)`", page.partition("\n\n`schedule`")[2].partition("\n\n")[0]))
    same.add("schedule")
    calls, headers = c_calls(tree)
    python, lua = {*python_methods(tree)} - {"closed"}, lua_methods(tree)
    for name in sorted(calls):
        if name not in quoted and name.removeprefix("lapse_") not in same:
            yield f"{PAGE}: lacks C's {name}"
    for language, methods in (("Python", python), ("Lua", lua)):
        if not methods:
            yield f"{PAGE}: {language} has no methods any more, or they are not found"
        yield from (f"{PAGE}: lacks {language}'s {name}" for name in sorted(methods - quoted))
    having = {"C": {c.removeprefix("lapse_") for c in calls}, "Python": python, "Lua": lua}
    for name in sorted(same):
        if others := [language for language, names in having.items() if name not in names]:
            yield f"{PAGE}: {name} is the same everywhere, it says: not in {', '.join(others)}"
    known = set(C_NAME.findall(headers)) | {"lapse_schedule", "lapse_cancel"}
    for name in sorted({word for word in quoted if C_NAME.fullmatch(word)} - known):
        yield f"{PAGE}: there is no {name}"


if __name__ == "__main__":
    main(check)
