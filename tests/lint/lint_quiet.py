"""The library is quiet: it prints nothing, ends nothing, and leaves signals to the host."""

import re

from lint import main

LOUD = re.compile(
    r"(?<![\w.>])(?:v?f?printf|v?dprintf|f?puts|f?putc|putchar|perror|p?fopen|syslog|openlog"
    r"|_?exit|_Exit|quick_exit|abort|atexit|on_exit|raise|kill|signal|sigaction|alarm"
    r"|setitimer|system|popen|setlocale|setenv|putenv|unsetenv"
    r"|strtok|strerror|rand|srand|localtime|gmtime)\s*\(|\b(?:stdout|stderr|stdin)\b"
)
# A binding may pause; in the core a thread waits for an event.
SLEEPS = re.compile(r"(?<![\w.>])(?:u|nano|clock_nano)?sleep\s*\(")


def check(tree):
    for path in tree.files("core", "bindings", ext=(".c", ".h")):
        for number, line in tree.code(path):
            found = LOUD.findall(line)
            if path.startswith("core/"):
                found += SLEEPS.findall(line)
            for call in found:
                yield f"{path}:{number}: {call.rstrip('( ')} in the library"


if __name__ == "__main__":
    main(check)
