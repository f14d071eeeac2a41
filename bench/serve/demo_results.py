"""Made-up results of the demonstration: trainings on several numbers of ranks, a pipeline that waits, and probes.

The story: `ddp` scales worse than its accepted efficiency because a rank is held back; `fsdp` and `zero1` need less
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collectors.metrics import probes, results
from collectors.metrics.metric import Metric, Sample
from workloads.spec import WATCHED

HELD_BACK = 3
"""The rank on the GPU that grows hot."""
FAILED_STRATEGY = "fsdp"
"""The strategy whose newest run failed; its result is from the night before."""
_GIB = 1 << 30
_IDLE_W, _BUSY_W = 120.0, 660.0
"""Power of an idle GPU, and of a GPU that computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeResult:
    """The medians of a series' newest result. shape: "" for a probe.

    is_old: from a night before the others. name: the name of a watched run, whose precision is unknown.
    """

    strategy: str
    ranks: int
    series: str
    medians: tuple[Sample, ...]
    device: str = "cuda"
    shape: str = "8b"
    is_old: bool = False
    name: str | None = None


def results_of(*, ranks: int, step_s: float, step_tokens: int) -> tuple[MadeResult, ...]:
    """Return all results. ranks: of the largest case. step_s: of the active run's case. step_tokens: per rank."""
    ddp = _Training(strategy="ddp", step_s=step_s, exposed=0.07, hidden=0.21, peak=97, optimizer=26)
    fsdp = _Training(strategy="fsdp", step_s=1.06 * step_s, exposed=0.11, hidden=0.32, peak=61, optimizer=26 / ranks)
    zero1 = _Training(strategy="zero1", step_s=1.02 * step_s, exposed=0.09, hidden=0.19, peak=76, optimizer=26 / ranks)
    worlds = ((1, 1.0), (2, 0.95), (4, 0.87), (ranks, 0.74))
    return (
        *(_trained(ddp, world, efficiency, ranks, step_tokens) for world, efficiency in worlds),
        _trained(fsdp, ranks, 0.86, ranks, step_tokens),
        _trained(zero1, ranks, 0.89, ranks, step_tokens),
        _WAITING,
        _ON_A_CPU,
        MadeResult(
            strategy=WATCHED,
            ranks=4,
            series="demonstration-watched",
            medians=tuple(_late()),
            shape="",
            name="llama-sft",
        ),
        _probed("collectives", ranks, _collectives(ranks)),
        _probed("matmul", 1, _products()),
        _probed("copies", 1, _copies()),
        _probed("pairs", ranks, _pairs(ranks)),
    )


def _probed(strategy: str, ranks: int, medians: Iterator[Sample]) -> MadeResult:
    series = f"demonstration-{strategy}"
    return MadeResult(strategy=strategy, ranks=ranks, series=series, medians=tuple(medians), shape="")


# Trainings.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """exposed, hidden: shares of a traced step, on all ranks. peak, optimizer: GiB."""

    strategy: str
    step_s: float
    exposed: float
    hidden: float
    peak: float
    optimizer: float


def _trained(training: _Training, world: int, efficiency: float, ranks: int, step_tokens: int) -> MadeResult:
    """Return the result on `world` ranks: its step, relative to that of the largest, follows from the efficiencies."""
    is_largest = world == ranks
    series = f"demonstration-{training.strategy}{'' if is_largest else f'-{world}'}"
    largest = 0.74 if training.strategy == "ddp" else efficiency
    step_s = training.step_s * largest / efficiency
    share = 0.0 if world == 1 else (1 - efficiency) / (1 - largest)
    exposed, hidden = share * training.exposed, (0.0 if world == 1 else training.hidden)
    power_w = _IDLE_W + (_BUSY_W - _IDLE_W) * (1 - exposed)  # A waiting GPU takes less.
    medians = [
        results.RUN_STEP_SECONDS.at(step_s),
        results.RUN_MEAN_STEP_SECONDS.at(1.01 * step_s),
        results.RUN_TOKENS_PER_SECOND.at(world * step_tokens / step_s),
        results.RUN_TOKENS_PER_SECOND_PER_DEVICE.at(step_tokens / step_s),
        results.RUN_FLOPS.at(406e12 * 0.5 / step_s),
        results.RUN_MFU.at(0.41 * 0.5 / step_s),
        results.RUN_MEASURED_MFU.at(0.52 * 0.5 / step_s),
        results.RUN_GPU_POWER_WATTS.at(power_w),
        results.RUN_TOKEN_ENERGY_JOULES.at(power_w * 1.01 * step_s / step_tokens),
        results.RUN_LOSS.at(1.8),
        results.RUN_OBSERVER_RATIO.at(0.0004),
        results.RUN_PEAK_MEMORY_BYTES.at(training.peak * _GIB, account="allocator"),
        results.RUN_STEP_PREDICTED_RATIO.at(0.93 - 0.8 * exposed),
        *_phases(step_s),
        *_memory(training),
        *_traced(exposed, hidden, step_s),
    ]
    if world > 1:
        medians += [
            results.RUN_SCALING_EFFICIENCY.at(efficiency, scaling="weak", baseline="beside"),
            results.RUN_EXPECTED_EFFICIENCY.at(1 / (1 + 0.5 * exposed), scaling="weak", baseline="beside"),
            results.RUN_OVERLAP_RATIO.at(hidden / (exposed + hidden)),
            results.RUN_COMMUNICATION_SECONDS.at((exposed + hidden) * step_s, account="traced"),
            results.RUN_COMMUNICATION_SECONDS.at(0.8 * (exposed + hidden) * step_s, account="expected"),
            results.RUN_WAITING_RATIO.at(0.31 * share),
        ]
    if is_largest and training.strategy in ("ddp", "fsdp"):
        medians += _saved(ranks, step_s)
    if is_largest and training.strategy == "ddp":
        medians += _held_up(ranks)
    return MadeResult(
        strategy=training.strategy,
        ranks=world,
        series=series,
        medians=tuple(medians),
        is_old=training.strategy == FAILED_STRATEGY,
    )


def _saved(ranks: int, step_s: float) -> Iterator[Sample]:
    """Yield figures of checkpoints that a thread writes while training continues."""
    rank_bytes, write_s = 1.6 * _GIB, 5.4
    yield results.RUN_CHECKPOINT_STALL_SECONDS.at(0.9)
    yield results.RUN_CHECKPOINT_WRITE_SECONDS.at(write_s)
    yield results.RUN_CHECKPOINT_RANK_BYTES.at(rank_bytes)
    yield results.RUN_CHECKPOINT_BYTES_PER_SECOND.at(ranks * rank_bytes / write_s)
    yield results.RUN_SAVING_STEP_SECONDS.at(1.08 * step_s)


def _phases(step_s: float) -> Iterator[Sample]:
    for phase, share in (("data", 0.01), ("forward", 0.29), ("backward", 0.61), ("optimizer", 0.06)):
        yield results.RUN_PHASE_SECONDS.at(share * step_s, phase=phase)


def _traced(exposed: float, hidden: float, step_s: float) -> Iterator[Sample]:
    yield results.RUN_TRACED_STEP_SECONDS.at(1.04 * step_s)
    copied, idle = 0.01, 0.04
    shares = {
        "compute": 1 - exposed - copied - idle,
        "communication": exposed + hidden,
        "overlap": hidden,
        "exposed_communication": exposed,
        "exposed_copy": copied,
        "idle": idle,
    }
    for part, share in shares.items():
        yield results.RUN_TRACED_RATIO.at(share, part=part)


def _memory(training: _Training) -> Iterator[Sample]:
    measured = {"parameters": 13.0, "gradients": 13.0, "optimizer": training.optimizer}
    measured["activations"] = training.peak - sum(measured.values())
    measured["total"] = training.peak
    for part, size in measured.items():
        expected = size * (0.94 if part == "activations" else 1.0)
        if part == "total":
            expected = size - 0.06 * measured["activations"]
        yield results.RUN_MEMORY_ACCOUNT_BYTES.at(size * _GIB, part=part, account="measured")
        yield results.RUN_MEMORY_ACCOUNT_BYTES.at(expected * _GIB, part=part, account="implementation")
        yield results.RUN_MEMORY_PREDICTED_RATIO.at(expected / size, part=part)


def _late() -> Iterator[Sample]:
    """Yield figures of a watched run in which one rank loads its data late, and the others wait for it in backward."""
    step_s, late, share = 0.31, 2, 0.12
    yield results.RUN_STEP_SECONDS.at(step_s)
    yield results.RUN_MEAN_STEP_SECONDS.at(1.02 * step_s)
    for quantile, factor in (("p90", 1.05), ("p99", 1.4)):
        yield results.RUN_STEP_QUANTILE_SECONDS.at(factor * step_s, quantile=quantile)
    yield results.RUN_LATE_RATIO.at(share, rank=str(late), phase="data")
    for rank in range(4):
        for phase, part in (("data", 0.02), ("forward", 0.24), ("backward", 0.56), ("optimizer", 0.05)):
            is_moved = phase == ("data" if rank == late else "backward")
            yield results.RUN_RANK_PHASE_SECONDS.at((part + share * is_moved) * step_s, rank=str(rank), phase=phase)


def _held_up(ranks: int) -> Iterator[Sample]:
    yield results.RUN_COLLECTIVE_WAIT_SECONDS.at(0.0018, collective="all_reduce")
    yield results.RUN_COLLECTIVE_TRANSFER_SECONDS.at(0.0041, collective="all_reduce")
    yield results.RUN_TRACED_BUS_BANDWIDTH.at(362e9, collective="all_reduce")
    yield results.RUN_COLLECTIVE_OVERLAP_RATIO.at(0.75, collective="all_reduce")
    for account in ("counted", "expected"):
        yield results.RUN_PAYLOAD_BYTES.at(13 * _GIB, collective="all_reduce", axis="data", account=account)
    yield results.RUN_STRAGGLER_RATIO.at(0.06, rank=str(HELD_BACK), cause="compute")
    yield results.RUN_CLOCK_RESIDUAL_SECONDS.at(4e-6)
    for rank in range(ranks):
        yield results.RUN_LAST_RATIO.at(0.83 if rank == HELD_BACK else 0.02, rank=str(rank))
        yield results.RUN_HELD_UP_RATIO.at(0.06 if rank == HELD_BACK else 0.001, rank=str(rank))


_ON_A_CPU = MadeResult(
    strategy="single",
    ranks=1,
    series="demonstration-single",
    device="cpu",
    shape="tiny",
    medians=(
        results.RUN_STEP_SECONDS.at(0.082),
        results.RUN_TOKENS_PER_SECOND_PER_DEVICE.at(6_240.0),
        results.RUN_LOSS.at(5.4),
        results.RUN_PEAK_MEMORY_BYTES.at(0.09 * _GIB, account="live_tensors"),
        results.RUN_PEAK_MEMORY_BYTES.at(0.61 * _GIB, account="resident"),
    ),
)


# A pipeline.

_STAGE_S = {"forward": 0.011, "backward": 0.023}
_WAITING = MadeResult(
    strategy="one_f_one_b",
    ranks=4,
    series="demonstration-one_f_one_b",
    medians=(
        results.RUN_STEP_SECONDS.at(0.41),
        results.RUN_STEP_PREDICTED_RATIO.at(0.88),
        results.RUN_TOKENS_PER_SECOND_PER_DEVICE.at(19_980.0),
        results.RUN_MFU.at(0.33),
        results.RUN_BUBBLE_RATIO.at(0.34, account="measured"),
        results.RUN_BUBBLE_RATIO.at(0.27, account="expected"),
        results.RUN_BUBBLE_PART_RATIO.at(0.27, part="schedule"),
        results.RUN_BUBBLE_PART_RATIO.at(0.04, part="imbalance"),
        results.RUN_BUBBLE_PART_RATIO.at(0.02, part="transfer"),
        results.RUN_BUBBLE_PART_RATIO.at(0.005, part="message"),
        results.RUN_BUBBLE_PART_RATIO.at(0.002, part="waiting_for_a_core"),
        results.RUN_BUBBLE_PART_RATIO.at(0.001, part="uneven"),
        results.RUN_BUBBLE_PART_RATIO.at(0.002, part="unexplained"),
        *(
            results.RUN_STAGE_SECONDS.at(elapsed_s * (1.2 if stage == 3 else 1.0), stage=str(stage), action=action)
            for stage in range(4)
            for action, elapsed_s in _STAGE_S.items()
        ),
        *(
            results.RUN_LIVE_MICROBATCHES.at(4 - stage, stage=str(stage), account=account)
            for stage in range(4)
            for account in ("measured", "expected")
        ),
        *(
            results.RUN_STAGE_ACTIVATION_BYTES.at((4 - stage) * 3 * _GIB, stage=str(stage), account=account)
            for stage in range(4)
            for account in ("measured", "expected")
        ),
    ),
)


# Probes: the machine's ceilings. Times are latency plus size over bandwidth, as for links.

_LATENCY_S, _LINK_BYTES_PER_S = 9e-6, 380e9
_CALLS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""How often each byte crosses the link, on many ranks."""


def _collectives(ranks: int) -> Iterator[Sample]:
    for collective, crossings in _CALLS.items():
        factor = crossings * (ranks - 1) / ranks
        for exponent in range(12, 31, 3):
            size = 1 << exponent
            expected_s = _LATENCY_S + factor * size / _LINK_BYTES_PER_S
            # Near the size at which NCCL changes its protocol, calls take longer.
            elapsed_s = expected_s * (1.25 if exponent == 21 else 1.03)
            call = {"collective": collective, "algorithm": "library", "size": str(size)}
            yield probes.RUN_COLLECTIVE_SECONDS.at(elapsed_s, **call)
            yield probes.RUN_COLLECTIVE_EXPECTED_SECONDS.at(expected_s, **call)
            yield probes.RUN_COLLECTIVE_WITH_HOST_SECONDS.at(elapsed_s + 4e-6, **call)
            yield probes.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH.at(size / elapsed_s, **call)
            yield probes.RUN_COLLECTIVE_BUS_BANDWIDTH.at(factor * size / elapsed_s, **call)
        yield probes.RUN_LINK_LATENCY_SECONDS.at(_LATENCY_S, collective=collective)
        yield probes.RUN_LINK_WITH_HOST_LATENCY_SECONDS.at(_LATENCY_S + 4e-6, collective=collective)
        yield probes.RUN_LINK_BANDWIDTH.at(_LINK_BYTES_PER_S, collective=collective)


def _products() -> Iterator[Sample]:
    for edge, flops in ((1024, 310e12), (2048, 540e12), (4096, 690e12), (8192, 730e12)):
        product = {"m": str(edge), "n": str(edge), "k": str(edge)}
        yield probes.RUN_MATMUL_FLOPS.at(flops, **product)
        yield probes.RUN_MATMUL_WITH_HOST_FLOPS.at(flops / (1 + flops * 5e-6 / (2 * edge**3)), **product)
        yield probes.RUN_MATMUL_CLOCK_HERTZ.at(1.98e9 if edge < 8192 else 1.74e9, **product)
        yield probes.RUN_MATMUL_POWER_WATTS.at(320.0 if edge < 4096 else 690.0, **product)


def _copies() -> Iterator[Sample]:
    yield from _by_size(
        (probes.RUN_COPY_BANDWIDTH, probes.RUN_COPY_WITH_HOST_BANDWIDTH),
        {"kind": {"device_to_device": 3.9e12, "host_to_device": 55e9, "device_to_host": 53e9}},
    )


def _pairs(ranks: int) -> Iterator[Sample]:
    pairs = {
        f"{first}-{second}": 40e9 if HELD_BACK in (first, second) else 130e9
        for first in range(ranks)
        for second in range(first + 1, ranks)
    }
    yield from _by_size((probes.RUN_PAIR_BANDWIDTH, probes.RUN_PAIR_WITH_HOST_BANDWIDTH), {"pair": pairs})


def _by_size(metrics: tuple[Metric, Metric], peaks: dict[str, dict[str, float]]) -> Iterator[Sample]:
    """Yield bandwidths of the device only, and including the host, whose launches delay small sizes."""
    of_device, with_host = metrics
    for label, bandwidths in peaks.items():
        for name, bytes_per_s in bandwidths.items():
            for size in (1 << 20, 1 << 28):
                labels = {label: name, "size": str(size)}
                elapsed_s = 6e-6 + size / bytes_per_s
                yield of_device.at(size / elapsed_s, **labels)
                yield with_host.at(size / (elapsed_s + 5e-6), **labels)
