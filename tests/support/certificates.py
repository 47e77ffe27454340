"""Certificates that sign themselves, made for a test."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from conftest import want_tool


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and of its key, in PEM."""

    file: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, names: str = "DNS:localhost,IP:127.0.0.1", days: int = 2) -> "Certificate":
        """One for some names, from now on; with negative days it has expired."""
        folder.mkdir(exist_ok=True)
        made = cls(folder / "cert.pem", folder / "key.pem")
        want_tool("openssl", "openssl")
        key, request, extensions = str(made.key), str(folder / "request.pem"), folder / "names"
        asked = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        asked += ["-keyout", key, "-out", request, "-subj", "/CN=made for a test"]
        extensions.write_text(f"subjectAltName={names}\n")
        signed = ["openssl", "x509", "-req", "-in", request, "-signkey", key, "-out", str(made.file)]
        signed += ["-extfile", str(extensions), "-days", str(days)]
        for command in (asked, signed):
            subprocess.run(command, check=True, capture_output=True)
        return made
