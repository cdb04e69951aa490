"""The command-line tool, as `lapse` and as `python -m lapse`."""

import os
import signal
import sys

from . import _lapse


def main() -> int:
    """Run the tool on this process's arguments; its exit code.

    Signals end it as they end the same tool without Python.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return _lapse._cli([b"lapse", *map(os.fsencode, sys.argv[1:])])


if __name__ == "__main__":
    sys.exit(main())
