"""Private folders for code that torch, Triton and DeepSpeed compile: whoever can write there runs code in the ranks.

By default torch keeps it in /tmp/torchinductor_USER, which another user may make first. A variable of the user's is
respected unless somebody else can write where it points.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import platformdirs

from bench.errors import InfrastructureFailed
from bench.machine.machine import CACHES
from bench.runs.files import APPLICATION
from collectors.files import is_writable_by_others


def private_caches(user: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return variables for the environment of ranks, and a notice for each of the user's that is not respected.

    Raises:
        InfrastructureFailed: neither the user's cache folder nor the one for temporary files has a private place.
    """
    variables, notices = {}, []
    for name, within in CACHES.items():
        why = exposed_by(Path(user[name])) if name in user else ""
        if why is None:
            continue
        variables[name] = str(_private_folder() / within)
        if why:
            notices.append(f"{name} is not used, since {why}; compiled code is kept in {variables[name]}")
    return variables, notices


def exposed_by(path: Path) -> str | None:
    """Return why another user may change what is in this folder, which need not be there yet; None where nobody may."""
    path = path.absolute()
    real = path.resolve()
    for folder in dict.fromkeys((path, *path.parents, real, *real.parents)):
        try:
            found = folder.lstat()
            if stat.S_ISLNK(found.st_mode) and found.st_uid in (0, os.geteuid()):
                continue  # Where it leads to is also looked at.
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{folder} cannot be read ({error.strerror})"
        if found.st_uid not in (0, os.geteuid()):
            return f"{folder} belongs to another user"
        # In a sticky folder nobody can replace what belongs to us, but whoever is first has a name in it.
        if is_writable_by_others(found) and not (found.st_mode & stat.S_ISVTX and _has_next(path, real, folder)):
            return f"other users may write to {folder}"
    return None


def _has_next(path: Path, real: Path, folder: Path) -> bool:
    """Return whether the path leads on from the folder by something that is there, whose owner was looked at."""
    whole = path if path.is_relative_to(folder) else real
    return folder != whole and os.path.lexists(folder / whole.relative_to(folder).parts[0])


def _make(folder: Path) -> None:
    """Make the folder and those above it that are not there, for their owner alone, whatever the umask."""
    for path in reversed((folder, *folder.parents)):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            path.chmod(0o700)


def _private_folder() -> Path:
    places = (
        Path(platformdirs.user_cache_dir(APPLICATION)) / "compiled",
        Path(tempfile.gettempdir()) / f"{APPLICATION}-{os.geteuid()}",
    )
    reasons = []
    for place in places:
        try:
            _make(place)
        except OSError as error:
            reasons.append(f"{place} cannot be made ({error.strerror})")
            continue
        why = f"{place} is a link" if place.is_symlink() else exposed_by(place)
        if why is None:
            return place
        reasons.append(why)
    raise InfrastructureFailed(
        f"there is no private folder for compiled code: {'; '.join(reasons)}; let TMPDIR name a folder of yours with"
        " mode 0700"
    )
