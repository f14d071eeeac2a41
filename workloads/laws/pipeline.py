"""What a card says of its pipeline: the schedule, how large it is, and what stages hand to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["naive", "gpipe", "one_f_one_b", "interleaved", "interleaved_zero_bubble", "zbv"]

HALVED_BACKWARD: tuple[ScheduleName, ...] = ("interleaved_zero_bubble", "zbv")
"""Those that part backward into that of inputs and that of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline: the ranks of the mesh axis `stage`.

    boundary_bytes: of the tensor that a stage hands to the next for one microbatch; its gradient comes back as large.
    """

    schedule: ScheduleName
    ranks: int
    stages_per_rank: int
    microbatches: int
    boundary_bytes: int

    @property
    def stages(self) -> int:
        """Stages of the whole model."""
        return self.ranks * self.stages_per_rank

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds a stage: in turn, or, in a V, there and back.

        Raises:
            ValueError: there is no such stage.
        """
        if not 0 <= stage < self.stages:
            raise ValueError(f"stage is {stage}; it may be 0 to {self.stages - 1}")
        if self.schedule == "zbv" and stage >= self.ranks:
            return self.stages - 1 - stage
        return stage % self.ranks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a pipeline rank holds, in the order of the model."""
        return tuple(stage for stage in range(self.stages) if self.rank_of(stage) == rank)
