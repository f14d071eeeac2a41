"""Certificates that openssl makes for tests only."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import program


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate and its key, in PEM."""

    file: Path
    key: Path

    def server(self) -> ssl.SSLContext:
        """Return the TLS context of a server that presents this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context

    def client(self, own: Certificate | None = None) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts what this certificate signed. own: the client's
        certificate."""
        context = ssl.create_default_context(cafile=self.file)
        if own is not None:
            context.load_cert_chain(own.file, own.key)
        return context


def make_authority(folder: Path, name: str) -> Certificate:
    """Make a certificate that may sign others."""
    return _make(folder, name, "-addext", "basicConstraints=critical,CA:TRUE")


def make_certificate(folder: Path, name: str, authority: Certificate) -> Certificate:
    """Make a certificate for 127.0.0.1, signed by the authority."""
    names = ("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE")
    return _make(folder, name, "-CA", str(authority.file), "-CAkey", str(authority.key), *names)


def _make(folder: Path, name: str, *more: str) -> Certificate:
    certificate = Certificate(file=folder / f"{name}.crt", key=folder / f"{name}.key")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
    files = ("-keyout", str(certificate.key), "-out", str(certificate.file))
    subprocess.run(
        [program("openssl", "openssl"), "req", "-x509", *curve, *files, "-days", "2", "-subj", f"/CN={name}", *more],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate
