# tiers: full
"""The code in README.md and docs/ runs.

Every block that is a whole program is run, alone and as it stands: Python that imports lapse,
Lua that requires it, C with a main(). A comment on the line before a block's fence says what
else it is:

    <!-- continues -->       it runs after the blocks before it, in one program with them
    <!-- not run: why -->    it is only compiled (Python, Lua), or left alone (C)
    <!-- expect: text -->    the program prints a line that holds this text; may be repeated

A Python block is one of these, so that none is forgotten. LAPSE_BUILD_DIR is the build folder.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["LAPSE_BUILD_DIR"])
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LIMIT = 60  # seconds that a block may take on a busy machine

MARK = re.compile(r"^<!-- (continues|not run|expect)(?:: (.+?))? -->$")
WHOLE = {
    "python": re.compile(r"^(?:import|from) lapse\b", re.MULTILINE),
    "lua": re.compile(r"require\s*\(?\s*[\"']lapse[\"']"),
    "c": re.compile(r"\bmain\("),
}
README_SAYS = "OID00000011 was not paid in time: closed"  # in every language
LUAS = {"lua5.4": "5.4", "lua5.1": "5.1", "luajit": "5.1"}


@dataclass
class Block:
    page: str
    line: int  # of its first line of code
    language: str
    code: str
    marks: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return bool(WHOLE[self.language].search(self.code)) and "not run" not in self.marks

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(text: str, page: str = "text") -> list[Block]:
    """The fenced blocks of a page in our three languages; lines keep their numbers."""
    found: list[Block] = []
    marks: dict[str, list[str]] = {}
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if mark := MARK.match(lines[at]):
            marks.setdefault(mark[1], []).append(mark[2] or "")
        elif lines[at].startswith("```"):
            end = lines.index("```", at + 1)
            language = lines[at][3:]
            if language in WHOLE:
                code = "\n".join(lines[at + 1 : end]) + "\n"
                found.append(Block(page, at + 2, language, code, marks))
            at, marks = end, {}
        elif lines[at].strip():
            marks = {}
        at += 1
    return found


def programs(blocks: list[Block]) -> list[Block]:
    """Whole programs: a block that continues is put behind what it continues."""
    found: list[Block] = []
    for block in blocks:
        if block.is_whole and "continues" not in block.marks:
            found.append(block)
        elif "continues" in block.marks:
            last = next((b for b in reversed(found) if b.language == block.language), None)
            assert last is not None, f"{block.name} continues nothing"
            gap = block.line - last.line - last.code.count("\n")
            last.code += "\n" * gap + block.code
            last.marks.setdefault("expect", []).extend(block.marks.get("expect", []))
    return found


BLOCKS = [b for page in PAGES for b in blocks_of(page.read_text(), str(page.relative_to(ROOT)))]
PROGRAMS = [p for page in {b.page: 0 for b in BLOCKS} for p in programs(
    [b for b in BLOCKS if b.page == page])]


def of(language: str) -> list[Block]:
    return [p for p in PROGRAMS if p.language == language]


@contextlib.contextmanager
def environment(page: str, folder: Path):
    """That of a page about a store with a server has the URL of one, in LAPSE_URL."""
    script = ROOT / "tests" / "servers" / Path(page).stem
    if not script.exists():
        yield None
        return
    at = str(folder / "server")
    started = subprocess.run([script, "start", at, str(os.getpid())], stdout=subprocess.PIPE,
                             check=True)  # fmt: skip
    try:
        yield {**os.environ, "LAPSE_URL": started.stdout.decode().strip()}
    finally:
        subprocess.run([script, "stop", at], check=True)


def check(block: Block, command: list[str], cwd: Path) -> None:
    with environment(block.page, cwd) as env:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, cwd=cwd, check=False, env=env
        )
    if env and "NoStore" in done.stderr:
        pytest.skip(f"this build has no {Path(block.page).stem} store")
    assert done.returncode == 0, f"{block.name}: exit status {done.returncode}\n{done.stderr}"
    assert done.stderr == "", f"{block.name}: {done.stderr}"
    wanted = [README_SAYS] if block.page == "README.md" else block.marks.get("expect", [])
    for text in wanted:
        assert text in done.stdout, f"{block.name}: {text!r} is not in\n{done.stdout}"


def numbered(block: Block) -> str:
    """The code at the lines at which it stands in its page."""
    return "\n" * (block.line - 1) + block.code


def write(block: Block, folder: Path, suffix: str) -> Path:
    path = folder / (re.sub(r"\W", "_", block.name) + suffix)
    path.write_text(numbered(block))
    return path


@pytest.mark.parametrize("block", of("python"), ids=lambda b: b.name)
def test_python(block: Block, tmp_path: Path) -> None:
    assert list((BUILD / "python").glob("lapse/_lapse*.so")), "the build has no Python"
    check(block, [sys.executable, "-W", "error", str(write(block, tmp_path, ".py"))], tmp_path)


@pytest.mark.parametrize("block", of("c"), ids=lambda b: b.name)
def test_c(block: Block, tmp_path: Path) -> None:
    library = next(iter(sorted(BUILD.glob("core/liblapse.so"))), None)
    assert library is not None, "the build has no liblapse.so"
    program = tmp_path / "program"
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
    subprocess.run(
        [os.environ.get("CC", "cc"), "-std=gnu11", *warnings, f"-I{ROOT}/core/include",
         str(write(block, tmp_path, ".c")), "-o", str(program), str(library),
         f"-Wl,-rpath,{library.parent}"],
        check=True,
    )  # fmt: skip
    check(block, [str(program)], tmp_path)


def luas() -> list[str]:
    return [lua for lua, version in LUAS.items() if (BUILD / "lua" / version).is_dir()]


@pytest.mark.parametrize("lua", luas())
@pytest.mark.parametrize("block", of("lua"), ids=lambda b: b.name)
def test_lua(block: Block, lua: str, tmp_path: Path) -> None:
    script = write(block, tmp_path, ".lua")
    check(block, [str(ROOT / "scripts" / "with-lua"), str(BUILD), lua, str(script)], tmp_path)


def test_no_python_block_is_forgotten() -> None:
    for block in BLOCKS:
        if block.language == "python":
            ast.parse(numbered(block), block.name)
            assert block.is_whole or set(block.marks) & {"continues", "not run"}, block.name
    for block in BLOCKS:
        assert all(block.marks.get("not run", ["why"])), f"{block.name} does not say why"


def test_readme_has_all_three_languages() -> None:
    assert {p.language for p in PROGRAMS if p.page == "README.md"} == set(WHOLE)
    assert any(p.page == "docs/python.md" for p in PROGRAMS)


PAGE = """
```python
import lapse
a = 1
```

Text.

<!-- continues -->
<!-- expect: 2 -->
```python
print(a + 1)
```
```sh
import lapse
```
<!-- not run: it takes all day -->

```python
import lapse
```
<!-- not run: the text between takes the mark away -->
Text.
```c
int main(void) { return 0; }
```
"""


def test_the_runner_reads_a_page() -> None:
    first, second, third, fourth = blocks_of(PAGE)
    assert (first.line, second.line, third.line, fourth.line) == (3, 12, 20, 25)
    assert (second.marks, fourth.marks) == ({"continues": [""], "expect": ["2"]}, {})
    assert third.marks == {"not run": ["it takes all day"]}
    joined, c = programs([first, second, third, fourth])
    assert numbered(joined).split("\n")[11] == "print(a + 1)"
    assert joined.marks["expect"] == ["2"] and c.language == "c"


@pytest.mark.parametrize(
    "code", ["import lapse\nlapse.nothing()\n", "import lapse\nimport sys\nsys.exit(3)\n",
             "import lapse, sys\nprint('x', file=sys.stderr)\n", "import lapse\nprint(1)\n"]
)
def test_the_runner_sees_a_block_that_fails(code: str, tmp_path: Path) -> None:
    block = Block("text", 1, "python", code, {"expect": ["2"]})
    with pytest.raises(AssertionError):
        check(block, [sys.executable, str(write(block, tmp_path, ".py"))], tmp_path)
