"""The history of a rank's device memory in one step: each block that was given and taken back, with who asked for it.

Only CUDA's allocator keeps one; pytorch.org/memory_viz draws it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from collectors.memory_curve import CannotSave

ENTRIES = 200_000
"""Events that are kept, the newest; one takes some kilobytes of the host."""


class Recorder(Protocol):
    """Keeps a history of blocks while it is on."""

    def start(self) -> None:
        """From now on every block's coming and going is kept."""

    def save(self, path: Path) -> None:
        """Write what was kept, and every block that is there."""

    def stop(self) -> None:
        """Keep nothing any more, and forget what was kept."""


class CudaRecorder:
    """The CUDA allocator's own."""

    def start(self) -> None:
        """See `Recorder.start`; with Python's stacks alone, which name the line of the workload."""
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES, stacks="python")

    def save(self, path: Path) -> None:
        """See `Recorder.save`."""
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """See `Recorder.stop`."""
        torch.cuda.memory._record_memory_history(enabled=None)


def save_history(run_step: Callable[[], object], path: Path, recorder: Recorder) -> None:
    """Run the step, and save the blocks that came and went in it. It must not be measured; those after it may be.

    Raises:
        CannotSave: the file cannot be written.
    """
    recorder.start()
    try:
        run_step()
        try:
            recorder.save(path)
        except OSError as error:
            raise CannotSave(f"{path} cannot be written: {error.strerror}") from error
    finally:
        recorder.stop()
