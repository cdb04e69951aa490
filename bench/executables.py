"""The peers of a suite of executables, one for each kind: each lists its own."""

import pathlib
import subprocess
import sys


def find(suite, kinds, options, folder, most):
    """Peer -> (command, groups, {workload: the most orders}), and the versions."""
    peers, versions = {}, []
    folder = options.bin or folder / "bench"
    for kind in kinds:
        executable = pathlib.Path(folder) / f"bench_{suite}_{kind}"
        if not executable.exists():
            print(f"without {kind}: {executable.name} was not built", file=sys.stderr)
            continue
        listing = subprocess.run([executable, "--list"], check=True, stdout=subprocess.PIPE,
                                 text=True)
        if not listing.stdout:
            print(f"without {kind}: it is not installed", file=sys.stderr)
            continue
        for line in listing.stdout.splitlines():
            peer, groups, version = line.split("\t")
            peers[peer] = ([str(executable)], groups.split(","), most.get(peer, {}))
        versions.append(version)
    return peers, versions
