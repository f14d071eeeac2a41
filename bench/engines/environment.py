"""The environment of ranks: torch's settings, and private folders for code that torch, Triton and DeepSpeed compile.

The user's settings are respected. By default torch compiles into /tmp/torchinductor_USER, which another user may create
first, and anyone who can write there can run code in ranks. A folder that the user names is respected unless
others can write to it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import platformdirs
import psutil

from bench.errors import InfrastructureFailed
from bench.machine.machine import CACHES
from bench.store.files import APPLICATION
from collectors.files import exposed_by

LOOPBACK = "127.0.0.1"
DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT"
"""Environment variable: whether torch itself writes a rank's flight record when a collective on NCCL fails."""


def environment(user: Mapping[str, str], host: str = LOOPBACK) -> dict[str, str]:
    """Return the environment of the forkserver and so of every rank: torch's settings, unless the user has set them.

    NCCL's process groups read their settings when they are created, in the rank (HeartbeatMonitor's constructor in
    ProcessGroupNCCL.cpp). By default a rank that has lost a peer writes its flight record and stacks to /tmp or
    ~/.cache, while its watchdog sleeps four times 15 s; the supervisor requests the record instead, as JSON (torch 2.11
    to 2.13).

    host: the address at which other nodes' ranks reach this node; gloo uses the interface with this address.
    """
    # The Flight Recorder tells a hung rank from the ranks that wait for it, and records the messages of traced steps.
    variables = {"TORCH_FR_BUFFER_SIZE": "10000"}
    # Without this, each rank of a pipeline on NCCL warns of unbatched messages: in torch 2.12 stages exchange some
    # before their first step. The messages of steps are batched.
    variables["TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"] = "0"
    if DUMPS not in user:
        variables |= {DUMPS: "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250"}
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == host for address in addresses):
            variables["GLOO_SOCKET_IFNAME"] = name  # Else gloo resolves the host's own name, which fails on laptops.
            break
    return {**variables, **user}


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
