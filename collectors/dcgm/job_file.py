"""One file of dcgm-exporter's job mapping: lines of job ids, of which we add and take away only our own.

A scheduler's scripts write such files too, and ask nobody; so a line is appended and never rewritten with others', and
is taken away by putting a whole file in the place of the old one.
"""

from __future__ import annotations

import os
from pathlib import Path

_READABLE = 0o644


def lines_of(path: Path) -> tuple[str, ...]:
    """The job ids that stand there; none where there is no file.

    Raises:
        OSError: it cannot be read.
    """
    return tuple(line.decode(errors="replace") for line in _content(path).splitlines())


def add_line(path: Path, line: str, draft: Path) -> bool:
    """Whether it was added: a line that stands there already is not, since dcgm-exporter fails on a repeated job.

    draft: where a new file is written before it appears, whole, under its own name.

    Raises:
        OSError: it cannot be read or written, or is a link.
    """
    if line in lines_of(path):
        return False
    if not path.exists() and _create(path, line, draft):
        return True
    content = _content(path)
    begin = "\n" if content and not content.endswith(b"\n") else ""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _READABLE)
    try:
        os.write(fd, f"{begin}{line}\n".encode())
    finally:
        os.close(fd)
    return True


def remove_line(path: Path, line: str, draft: Path) -> None:
    """Take the line away, and with the last line the file: an older dcgm-exporter drops a GPU whose file is empty.

    Raises:
        OSError: it cannot be read or written.
    """
    content = _content(path)
    lines = content.splitlines(keepends=True)
    kept = [one for one in lines if one.rstrip(b"\r\n") != line.encode()]
    if len(kept) == len(lines):
        return
    if not kept:
        path.unlink(missing_ok=True)
        return
    _write(draft, b"".join(kept), path.stat().st_mode & 0o777)
    draft.replace(path)


def _create(path: Path, line: str, draft: Path) -> bool:
    """Whether the file is new; False where somebody else's appeared meanwhile."""
    _write(draft, f"{line}\n".encode(), _READABLE)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _write(draft: Path, content: bytes, mode: int) -> None:
    draft.write_bytes(content)
    draft.chmod(mode)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
