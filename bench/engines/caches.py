"""Private folders for code that torch, Triton and DeepSpeed compile: whoever can write there runs code in the ranks.

By default torch keeps it in /tmp/torchinductor_USER, which another user may make first. A variable of the user's is
respected unless somebody else can write where it points.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import platformdirs

from bench.errors import InfrastructureFailed
from bench.machine.machine import CACHES
from bench.runs.files import APPLICATION
from collectors.files import exposed_by


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
