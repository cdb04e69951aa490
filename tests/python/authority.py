"""A private certificate authority for tests of TLS, by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """A CA of the test's own, and what it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self.folder, self.name = folder, name
        self.file = folder / "ca.pem"
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                     "-nodes", "-keyout", folder / "ca.key", "-out", self.file, "-days", "2",
                     "-subj", f"/CN={name}")  # fmt: skip

    def openssl(self, *words: object) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)

    def sign(self, name: str, san: str) -> tuple[Path, Path]:
        """The files of a certificate and its key."""
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request, names = self.folder / "request", self.folder / "names"
        names.write_text(f"subjectAltName={san}\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                     "-keyout", key, "-out", request, "-subj", f"/CN={name}")  # fmt: skip
        self.openssl("x509", "-req", "-in", request, "-CA", self.file, "-CAkey",
                     self.folder / "ca.key", "-CAcreateserial", "-days", "2", "-out", cert,
                     "-extfile", names)  # fmt: skip
        return cert, key
