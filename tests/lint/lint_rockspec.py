"""The rockspec stays true: no version of its own, and the folders it names are there."""

import re

from lint import main


def check(tree):
    specs = list(tree.files("lua", ext=(".rockspec",)))
    if specs != ["lua/lapse-scm-1.rockspec"]:
        yield f"lua: expected lapse-scm-1.rockspec alone, found {specs}"
        return
    text = tree.text(specs[0])
    if 'version = "scm-1"' not in text:
        yield f"{specs[0]}: its version is not scm-1; releases are made from lapse.h"
    for option in re.findall(r"-D(LAPSE_\w+)", text):
        cmake = tree.text("CMakeLists.txt") + tree.text("bindings/CMakeLists.txt")
        if option not in cmake:
            yield f"{specs[0]}: the build has no option {option}"


if __name__ == "__main__":
    main(check)
