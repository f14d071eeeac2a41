"""Results that are made up: a run that scales worse than is accepted, and one of a pipeline that waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.demonstration.ranks import RANKS, RUN, SERIES, STEP_S, STEP_TOKENS, STRATEGY
from collectors.catalogue import info, joined_ranks, pipeline, results
from collectors.exporter import Owned
from collectors.metric import Sample

INTERVAL_RATIO = 0.02
"""How far the interval of each result reaches to either side, of its median."""
COMPLETED_AGO_S = 3600.0
_PIPELINE, _PIPELINE_SERIES = "one_f_one_b", "demonstration-one_f_one_b"
_STAGE_S = {"forward": 0.011, "backward": 0.023}
_HELD_BACK = 3
"""The rank on the GPU that grows hot."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    strategy: str
    series: str
    ranks: int
    medians: tuple[Sample, ...]

    def samples(self, completed_s: float) -> Iterator[Owned]:
        owner = {
            "strategy": self.strategy,
            "ranks": str(self.ranks),
            "device": "cuda",
            "precision": "bf16",
            "series": self.series,
        }
        yield info.RESULT_INFO.at(1, series=self.series, run=RUN, strategy=self.strategy), {}
        yield info.RUN_LAST_COMPLETION.at(completed_s, **owner), {}
        for sample in self.medians:
            for bound, factor in (("median", 1.0), ("low", 1 - INTERVAL_RATIO), ("high", 1 + INTERVAL_RATIO)):
                yield Sample(sample.metric, factor * sample.value, sample.labels), {**owner, "bound": bound}


class MadeResults:
    """What the newest results of a history would say: all of them an hour old when this is made.

    now_s: seconds since 1970.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.time) -> None:
        self._completed_s = now_s() - COMPLETED_AGO_S

    def samples(self) -> Iterator[Owned]:
        """The results with their intervals."""
        for result in _RESULTS:
            yield from result.samples(self._completed_s)


_SCALING = _Result(
    strategy=STRATEGY,
    series=SERIES,
    ranks=RANKS,
    medians=(
        results.RUN_SCALING_EFFICIENCY.at(0.74, scaling="weak", baseline="beside"),
        results.RUN_STEP_SECONDS.at(STEP_S),
        results.RUN_MEAN_STEP_SECONDS.at(1.01 * STEP_S),
        results.RUN_TOKENS_PER_SECOND.at(RANKS * STEP_TOKENS / STEP_S),
        results.RUN_TOKENS_PER_SECOND_PER_DEVICE.at(STEP_TOKENS / STEP_S),
        results.RUN_MFU.at(0.41),
        results.RUN_LOSS.at(1.8),
        results.RUN_PEAK_MEMORY_BYTES.at(97 * _GIB, account="allocator"),
        results.RUN_OVERLAP_RATIO.at(0.75),
        results.RUN_TRACED_RATIO.at(0.88, part="compute"),
        results.RUN_TRACED_RATIO.at(0.28, part="communication"),
        results.RUN_TRACED_RATIO.at(0.07, part="exposed_communication"),
        joined_ranks.RUN_WAITING_RATIO.at(0.31),
        joined_ranks.RUN_COLLECTIVE_WAIT_SECONDS.at(0.0018, collective="all_reduce"),
        joined_ranks.RUN_COLLECTIVE_TRANSFER_SECONDS.at(0.0041, collective="all_reduce"),
        joined_ranks.RUN_TRACED_BUS_BANDWIDTH.at(362e9, collective="all_reduce"),
        joined_ranks.RUN_STRAGGLER_RATIO.at(0.06, rank=str(_HELD_BACK), cause="compute"),
        joined_ranks.RUN_CLOCK_RESIDUAL_SECONDS.at(4e-6),
        *(
            metric.at(at_worst if rank == _HELD_BACK else elsewhere, rank=str(rank))
            for metric, at_worst, elsewhere in (
                (joined_ranks.RUN_LAST_RATIO, 0.83, 0.02),
                (joined_ranks.RUN_HELD_UP_RATIO, 0.06, 0.001),
            )
            for rank in range(RANKS)
        ),
    ),
)
_WAITING = _Result(
    strategy=_PIPELINE,
    series=_PIPELINE_SERIES,
    ranks=4,
    medians=(
        results.RUN_STEP_SECONDS.at(0.41),
        results.RUN_TOKENS_PER_SECOND_PER_DEVICE.at(19_980.0),
        results.RUN_MFU.at(0.33),
        pipeline.RUN_BUBBLE_RATIO.at(0.34, account="measured"),
        pipeline.RUN_BUBBLE_RATIO.at(0.27, account="expected"),
        pipeline.RUN_BUBBLE_PART_RATIO.at(0.27, part="schedule"),
        pipeline.RUN_BUBBLE_PART_RATIO.at(0.04, part="imbalance"),
        pipeline.RUN_BUBBLE_PART_RATIO.at(0.02, part="transfer"),
        pipeline.RUN_BUBBLE_PART_RATIO.at(0.01, part="unexplained"),
        *(
            pipeline.RUN_STAGE_SECONDS.at(elapsed_s * (1.2 if stage == 3 else 1.0), stage=str(stage), action=action)
            for stage in range(4)
            for action, elapsed_s in _STAGE_S.items()
        ),
        *(
            pipeline.RUN_LIVE_MICROBATCHES.at(4 - place, stage=str(place), account=account)
            for place in range(4)
            for account in ("measured", "expected")
        ),
        *(
            pipeline.RUN_STAGE_ACTIVATION_BYTES.at((4 - place) * 3 * _GIB, stage=str(place), account="measured")
            for place in range(4)
        ),
    ),
)
_RESULTS = (_SCALING, _WAITING)
