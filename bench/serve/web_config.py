"""The web configuration file, in the format of Prometheus's own exporters: TLS, passwords and HTTP headers.

The file has only bcrypt hashes of passwords, and even these are never shown.
Source: prometheus/exporter-toolkit, docs/web-configuration.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import secrets
import ssl
import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import bcrypt
import yaml

from bench.errors import Misuse
from bench.store.files import read_small
from collectors.files import open_regular
from collectors.prometheus.http_server import ServerConfig

# Checking passwords against bcrypt hashes.

_COUNTED_BYTES = 72
"""bcrypt ignores further bytes of a password. Source: Provos and Mazieres 1999, A Future-Adaptable Password Scheme,
3."""


class Passwords:
    """Checks passwords for any number of threads; hashes one at a time, so that guessing costs one core at most.

    It remembers each user's last correct password, because a hash takes a tenth of a second and a client asks every few
    seconds. It stores only a fingerprint under a random key.

    hashes: by the user's name; at least one. matches: bcrypt's comparison of a password and a hash.
    """

    def __init__(self, hashes: Mapping[str, str], *, matches: Callable[[bytes, bytes], bool] = bcrypt.checkpw) -> None:
        self._hashes = {name.encode(): hashed.encode() for name, hashed in hashes.items()}
        # Compared for an unknown user, so that the duration does not reveal which users exist.
        self._decoy = max(self._hashes.values(), key=lambda hashed: hashed.split(b"$")[2])  # The cost: log2 of rounds.
        self._matches = matches
        self._key = secrets.token_bytes(32)
        self._right: dict[bytes, bytes] = {}
        self._hashing = threading.Lock()

    def admits(self, authorization: str) -> bool:
        """Return whether the value of an Authorization header names a user and that user's password."""
        credentials = _credentials(authorization)
        if credentials is None:
            return False
        name, password = credentials
        fingerprint = hashlib.blake2b(password, key=self._key).digest()
        if self._right.get(name) == fingerprint:
            return True
        hashed = self._hashes.get(name)
        with self._hashing:
            is_match = self._matches(password[:_COUNTED_BYTES], self._decoy if hashed is None else hashed)
        if is_match and hashed is not None:
            self._right[name] = fingerprint
            return True
        return False


def _credentials(authorization: str) -> tuple[bytes, bytes] | None:
    """Return name and password of HTTP's basic authentication; None if the header has another scheme or is broken.

    Source: RFC 7617, section 2.
    """
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


# Reading the file.

ClientCheck = Literal["none", "if given", "required"]
Version = Literal["TLS12", "TLS13"]

_TABLES = ("tls_server_config", "http_server_config", "basic_auth_users")
_TLS_KEYS = ("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version")
_NAMED_CLIENT_CHECKS: dict[str, ClientCheck] = {
    "NoClientCert": "none",
    "VerifyClientCertIfGiven": "if given",
    "RequireAndVerifyClientCert": "required",
}
"""Without RequestClientCert and RequireAnyClientCert, which accept a certificate from anybody."""
_NAMED_VERSIONS = ("TLS12", "TLS13")
"""Without TLS10 and TLS11, which RFC 8996 forbids."""
_HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""The headers that may be added, each with its allowed values; an empty tuple allows any line of ASCII."""
MOST_BYTES = 1 << 20
"""Largest file that is read: YAML is slow, and a web configuration has about a page."""
_HASH = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """How the connection is encrypted.

    client_check: which clients must show a certificate that `client_ca` signed.
    """

    certificate: Path
    key: Path
    client_check: ClientCheck = "none"
    client_ca: Path | None = None
    oldest: Version = "TLS12"
    newest: Version = "TLS13"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The file's settings. password_hashes: bcrypt hashes by user; if empty, no password is needed."""

    tls: TlsConfig | None = None
    password_hashes: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def read_web_config(path: Path) -> WebConfig:
    """Read the file and check it. Relative paths in it start from its folder.

    Raises:
        Misuse: it cannot be read, or has an unknown key or value.
    """
    return _File(path).config()


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is given twice; YAML would silently use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in names:
                raise yaml.constructor.ConstructorError(
                    problem=f'key "{key.value}" is given twice', problem_mark=key.start_mark
                )
            names.add(key.value)
        return super().construct_mapping(node, deep)


class _File:
    """Reads one file; messages name the file and the key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def config(self) -> WebConfig:
        """Return the settings, each value checked."""
        tables = self._table(self._content(), "", _TABLES)
        return WebConfig(
            tls=self._tls(tables["tls_server_config"]) if tables.get("tls_server_config") else None,
            password_hashes=self._hashes(tables.get("basic_auth_users")),
            headers=self._headers(tables.get("http_server_config")),
        )

    def _content(self) -> object:
        try:
            return yaml.load(read_small(self._path, MOST_BYTES), _StrictLoader)
        except OSError as error:
            raise self._misuse(f"{error.strerror}; name a file that this user may read") from None
        except yaml.MarkedYAMLError as error:  # The error's own text would quote the line, and a hash in it.
            line = 0 if error.problem_mark is None else error.problem_mark.line + 1
            raise self._misuse(f"line {line}: {error.problem}; it must be YAML") from None
        except RecursionError:
            raise self._misuse("its tables are nested too deeply; name a file that is a web configuration") from None
        except yaml.YAMLError:
            raise self._misuse("is not text; it must be YAML in UTF-8") from None
        except (ArithmeticError, AttributeError, LookupError, ValueError):  # From PyYAML's constructors.
            raise self._misuse(
                "a value cannot be read, for example a number of 5,000 digits or the date 2001-99-99; quote it"
            ) from None

    def _tls(self, table: object) -> TlsConfig:
        where = "tls_server_config"
        words = {
            key: self._text(value, f"{where}.{key}") for key, value in self._table(table, where, _TLS_KEYS).items()
        }
        for key, text in words.items():  # For example a path with a NUL, for which Python raises ValueError.
            if not text.isprintable():
                raise self._misuse(
                    f"{where}.{key} is {json.dumps(text)}; it must be one line without control characters"
                )
        for key in ("cert_file", "key_file"):
            if not words.get(key):
                raise self._misuse(f"{where}.{key} is missing; name the PEM file of the server's {key[:-5]}")
        auth_type = words.get("client_auth_type") or "NoClientCert"
        client_check = _NAMED_CLIENT_CHECKS[self._one_of(auth_type, f"{where}.client_auth_type", _NAMED_CLIENT_CHECKS)]
        authority = words.get("client_ca_file")
        if (client_check == "none") == bool(authority):
            raise self._misuse(
                f"{where}.client_ca_file and a client_auth_type that verifies go together; give both or none"
            )
        oldest = self._one_of(words.get("min_version") or "TLS12", f"{where}.min_version", _NAMED_VERSIONS)
        newest = self._one_of(words.get("max_version") or "TLS13", f"{where}.max_version", _NAMED_VERSIONS)
        if oldest > newest:
            raise self._misuse(f"{where}.min_version is {oldest}, above max_version, {newest}; swap them")
        return TlsConfig(
            certificate=self._path.parent / words["cert_file"],
            key=self._path.parent / words["key_file"],
            client_check=client_check,
            client_ca=self._path.parent / authority if authority else None,
            oldest=cast(Version, oldest),
            newest=cast(Version, newest),
        )

    def _hashes(self, table: object) -> dict[str, str]:
        where = "basic_auth_users"
        hashes = self._table(table, where)
        for user, hashed in hashes.items():
            if not user or ":" in user:
                raise self._misuse(f"{where}: {json.dumps(user)} is not a name; use any text without a colon")
            if not isinstance(hashed, str) or not _HASH.fullmatch(hashed):
                raise self._misuse(
                    f"{where}.{user} is not a bcrypt hash; make one with `htpasswd -nBC 10 {user}`, and quote it"
                )
        return hashes

    def _headers(self, table: object) -> dict[str, str]:
        where = "http_server_config"
        values = self._table(table, where, ("http2", "headers"))
        # True is Prometheus's own default and promises nothing: a client may also speak HTTP/1 there.
        if not isinstance(values.get("http2", False), bool):
            raise self._misuse(f"{where}.http2 must be true or false; the server speaks HTTP/1 either way")
        where += ".headers"
        headers = self._table(values.get("headers"), where, _HEADERS)
        texts = {name: self._text(value, f"{where}.{name}") for name, value in headers.items()}
        for name, text in texts.items():
            if text and _HEADERS[name]:
                self._one_of(text, f"{where}.{name}", _HEADERS[name])
            elif not (text.isprintable() and text.isascii()):
                raise self._misuse(f"{where}.{name} is {json.dumps(text)}; it must be one line of ASCII")
        return {name: text for name, text in texts.items() if text}

    def _table(self, value: object, where: str, known: Collection[str] | None = None) -> dict[str, Any]:
        """Check that the value is a table without unknown keys; None counts as an empty table."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._misuse(f"{where or 'the file'} must be a table of keys and values")
        for key in value:
            if not isinstance(key, str):
                raise self._misuse(f"{where}: key {_shown(key)} is not text; quote it")
            if known is not None and key not in known:
                name = f"{where}.{key}" if where else key
                raise self._misuse(f"{name} is not known here; it may be {', '.join(known)}")
        return value

    def _text(self, value: object, where: str) -> str:
        if isinstance(value, (list, dict, set)):  # Not shown: aliases can make a short file gigabytes of text.
            raise self._misuse(f"{where} is a list or table; it must be text")
        if value is not None and not isinstance(value, str):
            raise self._misuse(f"{where} is {_shown(value)}, which is not text; quote it")
        return value or ""

    def _one_of(self, value: str, where: str, known: Collection[str]) -> str:
        if value not in known:
            raise self._misuse(f"{where} is {json.dumps(value)}; it may be {', '.join(known)}")
        return value

    def _misuse(self, text: str) -> Misuse:
        return Misuse(f"{self._path}: {text}")


def _shown(value: object) -> str:
    """Return the value, unless it is a number of more digits than Python writes."""
    try:
        return str(value)
    except ValueError:
        return "a long number"


# The server's configuration made from the file, kept up to date while it serves.

_TLS_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFY_MODES: dict[ClientCheck, ssl.VerifyMode] = {
    "none": ssl.CERT_NONE,
    "if given": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

_Stamp = tuple[int, int, int]
"""Time of change in nanoseconds, size and inode, by which a changed file is recognised."""
_Stamps = dict[Path, _Stamp | None]
"""The stamp of each file that was read, taken before reading; None for a missing file."""


class WebGuard:
    """Reads the file, and the files that it names, again whenever one of them has changed; for any number of threads.

    If the new files cannot be used, the last configuration stays in force, with a notice: certificate and key are
    rarely replaced at the same moment, and a slip in the file must neither admit everybody nor lock out the readers.

    Raises:
        Misuse: the file, or one that it names, cannot be used.
    """

    def __init__(self, path: Path, *, on_notice: Callable[[str], None]) -> None:
        self._path = path
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self._server_config, self._stamps = _read(path)
        self._last_notice = ""

    def config(self) -> ServerConfig:
        """Return the current configuration for a client's connection or request."""
        with self._lock:
            if any(_stamp(file) != stamp for file, stamp in self._stamps.items()):
                self._read_again()
            return self._server_config

    def _read_again(self) -> None:
        try:
            server_config, stamps = _read(self._path)
            if (server_config.tls is None) != (self._server_config.tls is None):
                raise Misuse(f"{self._path}: encryption cannot be turned on or off while it serves; restart it")
        except Misuse as error:  # The stamps stay old, so that the next request tries again.
            if str(error) != self._last_notice:
                self._last_notice = str(error)
                self._on_notice(f"{error}; the previous configuration stays in force")
            return
        self._server_config, self._stamps, self._last_notice = server_config, stamps, ""


def _read(path: Path) -> tuple[ServerConfig, _Stamps]:
    stamps = {path: _stamp(path)}
    config = read_web_config(path)
    tls = config.tls
    if tls is not None:
        named = (tls.certificate, tls.key, tls.client_ca)
        stamps |= {file: _stamp(file) for file in named if file is not None}
    server_config = ServerConfig(
        tls=None if tls is None else _context(path, tls),
        admits=Passwords(config.password_hashes).admits if config.password_hashes else None,
        headers=config.headers,
    )
    return server_config, stamps


def _stamp(file: Path) -> _Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _context(path: Path, config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _TLS_VERSIONS[config.oldest], _TLS_VERSIONS[config.newest]
    context.verify_mode = _VERIFY_MODES[config.client_check]
    try:
        for file in (config.certificate, config.key):  # OpenSSL would wait for a writer to a named pipe.
            open_regular(file).close()
        # An empty password refuses an encrypted key; without a password OpenSSL would ask at the terminal.
        context.load_cert_chain(config.certificate, config.key, password="")
    except OSError as error:
        raise Misuse(
            f"{path}: tls_server_config: {config.certificate} and {config.key} cannot be used ({_reason(error)});"
            " they must be a certificate and its key without a password, in PEM"
        ) from None
    if config.client_ca is not None:
        try:
            open_regular(config.client_ca).close()
            context.load_verify_locations(config.client_ca)
        except OSError as error:
            raise Misuse(
                f"{path}: tls_server_config.client_ca_file: {config.client_ca} cannot be used ({_reason(error)});"
                " it must be a certificate in PEM"
            ) from None
    return context


def _reason(error: OSError) -> str:
    return (getattr(error, "reason", None) or error.strerror or str(error)).lower().replace("_", " ")
