"""dist.ini stays true: what it names is there, and it has no version of its own."""

from lint import main

REQUIRED = {
    "name", "abstract", "author", "is_original", "license", "lib_dir", "doc_dir", "main_module",
    "requires",
}  # fmt: skip
PATHS = ("lib_dir", "doc_dir", "main_module")


def check(tree):
    text = tree.text("dist.ini")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    fields = dict(line.split(" = ", 1) for line in lines)
    for name in sorted(REQUIRED - set(fields)):
        yield f"dist.ini: lacks {name}"
    if "version" in fields:
        yield "dist.ini: names a version; releases are made from lapse.h"
    for name in PATHS:
        if name in fields and not (tree.root / fields[name]).exists():
            yield f"dist.ini: {name} = {fields[name]}: it is not there"


if __name__ == "__main__":
    main(check)
