"""Passwords of the stack's servers: random, in files that only their owner reads, never on a command line.

They are stored with the data, because Grafana stores its own there: both are kept or deleted together.
"""

from __future__ import annotations

import base64
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import bcrypt

from bench.errors import Misuse
from collectors.files import open_regular, replace_file

USER = "observatory"
"""The user of Prometheus and Alertmanager; Grafana's is admin."""
FOLDER = Path("data", "passwords")
"""Folder of the passwords in the stack's folder, with one file for each server."""
_BYTES = 24
_ROUNDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """A password for each server. It consists of letters, digits, "-" and "_", and needs no quotes anywhere."""

    prometheus: str
    alertmanager: str
    grafana: str


def read_or_new(folder: Path) -> Passwords:
    """Return the passwords in the stack's folder, and new ones for servers without a password. Writes nothing.

    Raises:
        Misuse: an existing password's file belongs to another user, or others can change it.
    """

    def of(server: str) -> str:
        try:
            return _read(folder / FOLDER / server)
        except FileNotFoundError:
            return secrets.token_urlsafe(_BYTES)

    return Passwords(prometheus=of("prometheus"), alertmanager=of("alertmanager"), grafana=of("grafana"))


def write(folder: Path, passwords: Passwords, *, mode: int = 0o600) -> None:
    """Write the passwords that the stack's folder does not have yet."""
    (folder / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
    for server in ("prometheus", "alertmanager", "grafana"):
        path = folder / FOLDER / server
        if not path.exists():
            replace_file(path, getattr(passwords, server).encode(), mode=mode)


def read(folder: Path, server: str) -> str:
    """Return the password of a server.

    Raises:
        Misuse: its file is missing or belongs to another user, or others can change it.
    """
    path = folder / FOLDER / server
    try:
        return _read(path)
    except FileNotFoundError:
        raise Misuse(
            f"{path} is missing, and {server} asks for it; `observatory stack down` and `up` make it again"
        ) from None


def _read(path: Path) -> str:
    try:
        file = open_regular(path, follows_link=False)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}; delete it, and the next `up` makes another") from None
    with file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise Misuse(
                f"{path} is another user's, or others can change it; delete it, and the next `up` makes another"
            )
        return file.read(1000).decode(errors="replace")


def authorization(password: str) -> str:
    """Return the value of an Authorization header. Source: RFC 7617."""
    return f"Basic {base64.b64encode(f'{USER}:{password}'.encode()).decode()}"


def hashed(password: str) -> str:
    """Return the password's bcrypt hash, for a server's web configuration."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(_ROUNDS)).decode()
