"""What the time of a rank's step says of its speed: tokens per second and MFU, known while the run still goes on."""

from __future__ import annotations

from bench.case import Case
from bench.judgement.efficiency import flops_per_second_per_device
from bench.peaks import Absent, Peak
from collectors.catalogue.step import MEASURED_MFU, MFU, TOKENS_PER_SECOND
from collectors.metric import Metric, Sample


class StepSpeed:
    """The speed of one rank's steps.

    Why a figure is absent is not said here: the run's own figures, which have the same limits, say it.
    """

    def __init__(
        self, case: Case, *, tokens: float, peak: Peak | Absent, ceiling_flops_per_second: float | None
    ) -> None:
        """tokens: that the rank counts in a step. ceiling_flops_per_second: see `bench.judgement.ceiling.Ceiling`."""
        self._case = case
        self._tokens = tokens
        limits = {
            MFU: peak.flops_per_second if isinstance(peak, Peak) else None,
            MEASURED_MFU: ceiling_flops_per_second,
        }
        self._limits: dict[Metric, float] = {metric: limit for metric, limit in limits.items() if limit is not None}

    def samples(self, step_s: float) -> list[Sample]:
        """The figures of a step that took so long; those that cannot be known are left out.

        A rank that trains on no batch has no tokens. A share above 1 cannot be, and is left out too.
        """
        achieved = flops_per_second_per_device(self._case.shape, self._case.ranks, step_s)
        return [
            *([TOKENS_PER_SECOND.at(self._tokens / step_s)] if self._tokens else []),
            *(metric.at(achieved / limit) for metric, limit in self._limits.items() if achieved <= limit),
        ]
