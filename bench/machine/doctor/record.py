"""Records NVML's answers on this machine to a file that can be replayed on another machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path

from bench.errors import InfrastructureFailed, Misuse
from collectors.files import drafted
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.library import Nvml
from collectors.nvml.recorder import encode, record

SECONDS = 60.0


def record_to(
    path: Path,
    seconds: float,
    *,
    per_link: bool = False,
    on_notice: Callable[[str], None],
    nvml: Nvml | None = None,
    clock_s: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Write the recording; an existing file is replaced only when the new one is complete.

    per_link: also record the bytes of each NVLink. on_notice: called with progress messages. nvml: the installed
    library by default.

    Raises:
        Misuse: the file cannot be written.
        InfrastructureFailed: there is no GPU to record, or the disk is full.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(drafted(path, is_any_folder=True))
        except OSError as error:
            raise Misuse(f"{path}: {error.strerror}; choose a file in a folder that you can write to") from None
        with closing(NvmlCollector(nvml)) as collector:
            if not collector.read():
                raise InfrastructureFailed(f"nothing to record: {'; '.join(collector.absent)}")
        on_notice(f"recording NVML for {seconds:g} s")
        note = f"{seconds:g} s of a real machine, by `observatory doctor --record` {version('parallel-observatory')}"
        recording = record(nvml, seconds=seconds, note=note, per_link=per_link, clock_s=clock_s, wait=wait)
        try:
            size_bytes = file.write(encode(recording))
            stack.close()
        except OSError as error:
            raise InfrastructureFailed(
                f"{path}: {error.strerror}; the recording is lost; record again to another disk"
            ) from None
    gpus = "1 GPU" if len(recording.gpus) == 1 else f"{len(recording.gpus)} GPUs"
    on_notice(f"{path}: {gpus}, {size_bytes:,} B; it contains process IDs, but no UUIDs or serial numbers")
