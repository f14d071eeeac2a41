"""Checkpoints between the measured steps of a trial: saved, timed, and removed again.

A save lies between two measured steps and is part of neither. While a background save writes, extra steps run that do
not count as measured: their time shows how much writing slows training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from bench.errors import plural
from bench.rank.distributed import DiskFull, TrialLog, all_agree, as_full_disk, wait_for_all
from bench.rank.messages import RankOrder
from collectors.metrics.rank import CHECKPOINT_BYTES, CHECKPOINT_STALL_SECONDS, CHECKPOINT_WRITE_SECONDS
from workloads.core.checkpointing import admit_plans, checkpoint_bytes, remove, save, written_bytes
from workloads.core.mesh import timeout_of
from workloads.protocols import Workload


def checkpoint_folder(run: Path, trial: int) -> Path:
    """Return the folder of a trial's newest checkpoint. run: the run's folder on the rank's node."""
    return run / f"trial{trial}" / "checkpoint"


@dataclass(slots=True, kw_only=True)
class Saver:
    """Saves the checkpoints of a rank in one trial. All ranks call it in the same steps.

    train: runs this many extra steps, and logs those that begin while the given function returns true.
    """

    order: RankOrder
    log: TrialLog
    device: torch.device
    workload: Workload
    train: Callable[[int, Callable[[], bool]], None]
    _group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        admit_plans()
        if self.order.case.save_mode == "async":
            world = dist.group.WORLD
            assert world is not None, "ranks have met"
            self._group = dist.new_group(backend="gloo", timeout=timeout_of(world, self.device))

    @property
    def folder(self) -> Path:
        """The folder of the trial's checkpoint."""
        return checkpoint_folder(Path(self.order.folder), self.order.trial)

    def save(self) -> None:
        """Save a checkpoint in place of the previous one, and log its times and size.

        Raises:
            DiskFull: a rank's disk has no room.
            Exception: any other reason why the save failed. This rank's files have been removed by then.
        """
        case, rank = self.order.case, self.order.rank
        remove(self.folder, rank)  # First, so that the disk needs room for only one.
        wait_for_all(self.device)
        begun_ns = time.perf_counter_ns()
        try:
            saved = save(case, self.workload, self.folder, mode=case.save_mode, group=self._group)
            stood_ns = time.perf_counter_ns() - begun_ns
            written_at_ns = stood_ns + begun_ns
            if case.save_mode == "async":
                written_at_ns = self._train_until(saved)
            saved.result()
        except Exception as error:
            needed = checkpoint_bytes(self.workload)
            remove(self.folder, rank)  # The log also needs room.
            if as_full_disk(error) is not None:
                raise DiskFull(
                    f"No space left on device: a checkpoint in {self.folder} needs up to {needed:,} bytes for each of"
                    f" {plural(case.ranks, 'rank')}; free as much, or choose another disk with --runs"
                ) from error
            raise
        self.log.reading(
            "checkpoint",
            [
                CHECKPOINT_STALL_SECONDS.at(stood_ns / 1e9),
                CHECKPOINT_WRITE_SECONDS.at((written_at_ns - begun_ns) / 1e9),
                CHECKPOINT_BYTES.at(written_bytes(self.folder, rank)),
            ],
        )
        wait_for_all(self.device)

    def end(self) -> None:
        """Remove the last checkpoint, unless the run keeps it."""
        if not self.order.instrumentation.keep_checkpoint:
            remove(self.folder, self.order.rank)

    def _train_until(self, saved: Future[None]) -> int:
        """Run steps until every rank knows that all files are written; return when this rank knew, by the host's clock.

        The ranks ask each other after 1, 2, 4 ... steps, so that the device seldom waits for the answer.
        """
        ends_ns: list[int] = []
        saved.add_done_callback(lambda _: ends_ns.append(time.perf_counter_ns()))
        steps = 1
        while not all_agree(saved.done(), self.device):
            self.train(steps, lambda: not saved.done())
            steps *= 2
        saved.exception()
        return ends_ns[0]
