"""Private folders for code that torch, Triton and DeepSpeed compile: anyone who can write there can run code in ranks.

By default torch uses /tmp/torchinductor_USER, which another user may create first. A variable that the user has set is
respected unless other users can write to the folder that it names.
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
    """Return variables for the environment of ranks, and a notice for each variable of the user that is ignored.

    Raises:
        InfrastructureFailed: no private folder can be made in the user's cache folder or in the temporary folder.
    """
    variables, notices = {}, []
    for name, within in CACHES.items():
        why = exposed_by(Path(user[name])) if name in user else ""
        if why is None:
            continue
        variables[name] = str(_private_folder() / within)
        if why:
            notices.append(f"{name} is ignored because {why}; compiled code is kept in {variables[name]}")
    return variables, notices


def _make(folder: Path) -> None:
    """Make the folder and its missing parents, accessible to their owner only, whatever the umask."""
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
        f"there is no private folder for compiled code: {'; '.join(reasons)}; set TMPDIR to a folder of your own with"
        " mode 0700"
    )
