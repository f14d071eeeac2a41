"""The terms that a web configuration file sets, kept up to date while they are in force."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from pathlib import Path

from bench.errors import Misuse
from bench.passwords import Passwords
from bench.web_config import ClientCheck, TlsConfig, read_web_config
from collectors.http_door import Terms

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_CHECKS: dict[ClientCheck, ssl.VerifyMode] = {
    "none": ssl.CERT_NONE,
    "if given": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

_Stamp = tuple[int, int, int]
"""What tells a changed file from an unchanged one."""
_Stamps = dict[Path, _Stamp | None]
"""The stamp of each file that was read, from before it was; None of one that is not there."""


class WebGuard:
    """Reads the file, and the files that it names, again whenever one of them has changed; for any number of threads.

    Where the new ones cannot be used the last terms stay in force, which is said: certificate and key are rarely
    replaced in the same moment, and a slip in the file must neither open the door nor shut out those who watch.

    Raises:
        Misuse: the file, or one that it names, cannot be used.
    """

    def __init__(self, path: Path, *, on_notice: Callable[[str], None]) -> None:
        self._path = path
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self._terms, self._stamps = _read(path)
        self._said = ""

    def terms(self) -> Terms:
        """The terms for a client that comes now."""
        with self._lock:
            if any(_stamp(file) != stamp for file, stamp in self._stamps.items()):
                self._read_again()
            return self._terms

    def _read_again(self) -> None:
        try:
            terms, stamps = _read(self._path)
            if (terms.tls is None) != (self._terms.tls is None):
                raise Misuse(f"{self._path}: encryption cannot be turned on or off while it serves; start it anew")
        except Misuse as error:  # The stamps stay old, so that the next client tries again.
            if str(error) != self._said:
                self._said = str(error)
                self._on_notice(f"{error}; what was in force before stays so")
            return
        self._terms, self._stamps, self._said = terms, stamps, ""


def _read(path: Path) -> tuple[Terms, _Stamps]:
    stamps = {path: _stamp(path)}
    config = read_web_config(path)
    tls = config.tls
    if tls is not None:
        named = (tls.certificate, tls.key, tls.client_ca)
        stamps |= {file: _stamp(file) for file in named if file is not None}
    terms = Terms(
        tls=None if tls is None else _context(path, tls),
        admits=Passwords(config.password_hashes).admits if config.password_hashes else None,
        headers=config.headers,
    )
    return terms, stamps


def _stamp(file: Path) -> _Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _context(path: Path, config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[config.oldest], _VERSIONS[config.newest]
    context.verify_mode = _CLIENT_CHECKS[config.client_check]
    try:
        # An empty password for a key that wants one: nobody is there to be asked.
        context.load_cert_chain(config.certificate, config.key, password="")
    except OSError as error:
        raise Misuse(
            f"{path}: tls_server_config: {config.certificate} and {config.key} cannot be used ({_reason(error)});"
            " they must be a certificate and its key without a password, in PEM"
        ) from None
    if config.client_ca is not None:
        try:
            context.load_verify_locations(config.client_ca)
        except OSError as error:
            raise Misuse(
                f"{path}: tls_server_config.client_ca_file: {config.client_ca} cannot be used ({_reason(error)});"
                " it must be a certificate in PEM"
            ) from None
    return context


def _reason(error: OSError) -> str:
    return (getattr(error, "reason", None) or error.strerror or str(error)).lower().replace("_", " ")
