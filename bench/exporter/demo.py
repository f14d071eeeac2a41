"""The demonstration of `observatory serve --demo`: recorded GPUs, and a made-up run, InfiniBand ports and results.

Needs neither a GPU nor a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.exporter.server import answering, once, refusal
from collectors.metrics import agent, gate, host, results, suites
from collectors.metrics import rank as rank_metrics
from collectors.metrics.gpu import RANK_GPU, RANK_GPU_MEMORY
from collectors.metrics.metric import Sample
from collectors.node.registry import OPENERS, USUAL, NodeCollector, Opener, PollingConfig, open_collectors, open_nvml
from collectors.node.watch import NodeWatch
from collectors.nvml.recorder import EIGHT_GPUS, load
from collectors.nvml.replay import RecordedNvml
from collectors.prometheus.exposition import Owned, Source
from collectors.prometheus.http_server import CannotListen, Server, ServerConfig

# Collectors of a node whose GPUs are a recording that never ends, and whose host is this machine.

NOTICE = (
    "this is a demonstration: the GPUs are a recording; the run, the results, the suites and InfiniBand ports called"
    " made_* are made up; only the rest of the host and the agent are this machine's"
)


def open_recorded_collectors(polling: PollingConfig = USUAL) -> tuple[NodeCollector, ...]:
    """Open the registered node collectors, with recorded GPUs in place of this node's."""
    recorded: Opener = lambda polling: open_nvml(polling, RecordedNvml(load(EIGHT_GPUS)).nvml)  # noqa: E731
    openers = tuple((name, recorded if name == "nvml" else opener) for name, opener in OPENERS)
    return open_collectors(polling, openers)


# A made-up run: one rank on each sound GPU of the recorded node, all as slow as the one that grows hot.

RUN = "demonstration"
STRATEGY, SERIES, SLOT, HOST = "ddp", "demonstration-ddp", "0", "demonstration"
RANKS = 6
"""The recorded node has two GPUs more: one falls off the bus, one is split by MIG."""
LAP_S = 600.0
HOT_S, COOL_S = 240.0, 360.0
STEP_S, HOT_STEP_S = 0.5, 0.62
STEP_TOKENS = 32_768
_PHASES = {"data": 0.01, "forward": 0.29, "backward": 0.61, "optimizer": 0.06}
"""Share of each phase in a step; the rest is waiting."""
_DATA_WAIT = 0.06
"""Share of a step that the host waits for a batch; the GPU has work queued for most of it."""
_MFU_RATIO = 0.41
_EXPOSED, _HIDDEN, _COMPUTED = 0.07, 0.21, 0.88
"""Shares of a traced step: communication that is exposed, communication that is hidden, computation."""
_GIB = 1 << 30
_STATE = {"parameters": 13 * _GIB, "gradients": 13 * _GIB, "optimizer": 26 * _GIB}
_ALLOCATED, _PEAK, _RESERVED = 54 * _GIB, 97 * _GIB, 104 * _GIB
_ACTIVE, _INACTIVE_SPLIT = _ALLOCATED + _GIB // 4, 3 * _GIB
"""Active is what is allocated plus what messages under way still hold; inactive split is the fragmentation."""
_CONTEXT = _GIB // 2
"""What the driver counts for a process beyond what torch reserves."""
_PHASE_PEAKS = {"data": 54 * _GIB, "forward": 91 * _GIB, "backward": 97 * _GIB, "optimizer": 81 * _GIB}


def made_ranks(at_s: float, begun_s: float = 0.0) -> Iterator[Owned]:
    """Yield the made-up run, and its ranks' newest step, traced step and memory, so long after its begin.

    begun_s: Unix time of that begin.
    """
    yield agent.RUN_INFO.at(1, run=RUN, slot=SLOT, strategy=STRATEGY, ranks=str(RANKS), series=SERIES), {}
    yield agent.RUN_LAST_PROGRESS.at(begun_s + at_s, run=RUN, slot=SLOT), {}
    for rank in range(RANKS):
        owner = {"rank": str(rank), "slot": SLOT}
        yield agent.RANK_INFO.at(1, run=RUN, host=HOST), owner
        yield RANK_GPU.at(1, run=RUN, gpu=str(rank), slice=""), owner
        yield RANK_GPU_MEMORY.at(_RESERVED + _CONTEXT, gpu=str(rank), slice=""), owner
        for sample in (*_step(at_s, rank), *_traced(at_s), *_memory()):
            yield sample, owner


def steps_by(at_s: float) -> float:
    """Return the steps since the run began; the GPU is hot, and steps are slow, from HOT_S to COOL_S of each lap.

    After 300 s, 60 s of them hot: 60 / 0.62 + 240 / 0.5 = 576.8 steps.
    """
    laps, into_s = divmod(at_s, LAP_S)
    hot_s = laps * (COOL_S - HOT_S) + min(max(into_s - HOT_S, 0.0), COOL_S - HOT_S)
    return hot_s / HOT_STEP_S + (at_s - hot_s) / STEP_S


def _step_s(at_s: float) -> float:
    return HOT_STEP_S if HOT_S <= at_s % LAP_S < COOL_S else STEP_S


def _step(at_s: float, rank: int) -> Iterator[Sample]:
    step_s = _step_s(at_s) * (1 + (rank - RANKS / 2) / 1e3)
    yield rank_metrics.STEP_SECONDS.at(step_s)
    for phase, share in _PHASES.items():
        yield rank_metrics.PHASE_SECONDS.at(share * step_s, phase=phase)
    yield rank_metrics.DATA_WAIT_SECONDS.at(_DATA_WAIT * step_s)
    yield rank_metrics.TOKENS.at(STEP_TOKENS * math.floor(steps_by(at_s)))
    yield rank_metrics.TOKENS_PER_SECOND.at(STEP_TOKENS / step_s)
    yield rank_metrics.MFU.at(_MFU_RATIO * STEP_S / step_s)
    yield rank_metrics.LOSS.at(1.8 + 9.0 * math.exp(-steps_by(at_s % LAP_S) / 300) + rank / 1e3)
    yield rank_metrics.LEARNING_RATE.at(3e-4)
    yield rank_metrics.OBSERVER_SECONDS.at(2e-4)


def _traced(at_s: float) -> Iterator[Sample]:
    step_s = _step_s(at_s)
    yield rank_metrics.TRACED_STEP_SECONDS.at(step_s)
    yield rank_metrics.COMPUTE_SECONDS.at(_COMPUTED * step_s)
    yield rank_metrics.COMMUNICATION_SECONDS.at((_EXPOSED + _HIDDEN) * step_s)
    yield rank_metrics.OVERLAP_SECONDS.at(_HIDDEN * step_s)
    yield rank_metrics.EXPOSED_COMMUNICATION_SECONDS.at(_EXPOSED * step_s)
    yield rank_metrics.IDLE_SECONDS.at((1 - _COMPUTED - _EXPOSED) * step_s)
    yield rank_metrics.OVERLAP_RATIO.at(_HIDDEN / (_EXPOSED + _HIDDEN))
    yield rank_metrics.EXPOSED_COMMUNICATION_RATIO.at(_EXPOSED)


def _memory() -> Iterator[Sample]:
    yield rank_metrics.ALLOCATED_BYTES.at(_ALLOCATED)
    yield rank_metrics.RESERVED_BYTES.at(_RESERVED)
    yield rank_metrics.ACTIVE_BYTES.at(_ACTIVE)
    yield rank_metrics.INACTIVE_SPLIT_BYTES.at(_INACTIVE_SPLIT)
    yield rank_metrics.PEAK_BYTES.at(_PEAK)
    for phase, peak_bytes in _PHASE_PEAKS.items():
        yield rank_metrics.PHASE_PEAK_BYTES.at(peak_bytes, phase=phase)
    yield rank_metrics.ALLOCATION_RETRIES.at(0)
    yield rank_metrics.OUT_OF_MEMORY.at(0)
    for part, part_bytes in _STATE.items():
        yield rank_metrics.STATE_BYTES.at(part_bytes, part=part)
    yield rank_metrics.RESIDENT_BYTES.at(6 * _GIB)


# Made-up InfiniBand ports, as few who look at a demonstration have any; one loses its link for a while.

DEVICES = 4
BROKEN = "made_3"
DOWN_S, UP_S = 120.0, 360.0
"""Begin and end of the time in each lap when the broken port has no link."""
LINK_BYTES_PER_S = 400e9 / 8
_STEP_BYTES = 6.5e9
"""Bytes that a port carries each way in a step of the made-up run."""


def made_ports(at_s: float) -> Iterator[Owned]:
    """Yield state, speed, bytes and errors of each port, so long after the run's begin."""
    for number in range(DEVICES):
        for sample in _port(f"made_{number}", at_s):
            yield sample, {}


def _port(device: str, at_s: float) -> Iterator[Sample]:
    port = {"device": device, "port": "1"}
    laps, into_s = divmod(at_s, LAP_S)
    is_up = not (device == BROKEN and DOWN_S <= into_s < UP_S)
    state, physical_state = ("ACTIVE", "LinkUp") if is_up else ("DOWN", "Polling")
    yield host.HOST_INFINIBAND_INFO.at(1, **port, layer="InfiniBand", state=state, physical_state=physical_state)
    if is_up:
        yield host.HOST_INFINIBAND_LINK.at(LINK_BYTES_PER_S, **port)
    for direction in ("received", "sent"):
        yield host.HOST_INFINIBAND_BYTES.at(round(_STEP_BYTES * steps_by(at_s)), **port, direction=direction)
    yield host.HOST_INFINIBAND_WAIT.at(round(1e4 * steps_by(at_s)), **port)
    times_down = laps + (into_s >= DOWN_S) if device == BROKEN else 0
    yield host.HOST_INFINIBAND_ERRORS.at(times_down, **port, kind="link_downed")
    yield host.HOST_INFINIBAND_ERRORS.at(37 * times_down, **port, kind="symbol_error")


# Made-up results: a run that scales worse than is accepted, and one of a pipeline that waits.

INTERVAL_RATIO = 0.02
"""How far the interval of each result reaches to either side, as a share of its median."""
COMPLETED_AGO_S = 3600.0
_PIPELINE, _PIPELINE_SERIES = "one_f_one_b", "demonstration-one_f_one_b"
_STAGE_S = {"forward": 0.011, "backward": 0.023}
FAILED_STRATEGY = "fsdp"
HELD_BACK = 3
"""The rank on the GPU that grows hot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    strategy: str
    series: str
    ranks: int
    medians: tuple[Sample, ...]


def made_results(completed_s: float) -> Iterator[Owned]:
    """Yield the newest results that a history would hold, with intervals. completed_s: Unix time of all of them."""
    shape = {"ranks": str(RANKS), "device": "cuda", "precision": "bf16"}
    failed = {"strategy": FAILED_STRATEGY, **shape, "series": f"demonstration-{FAILED_STRATEGY}"}
    yield agent.RUN_LAST_FAILURE.at(completed_s, **failed, run=RUN, outcome="failed"), {}
    for result in _RESULTS:
        shape = {"ranks": str(result.ranks), "device": "cuda", "precision": "bf16"}
        owner = {"strategy": result.strategy, **shape, "series": result.series}
        yield agent.RESULT_INFO.at(1, series=result.series, run=RUN, strategy=result.strategy), {}
        yield agent.RUN_LAST_COMPLETION.at(completed_s, **owner), {}
        for sample in result.medians:
            for bound, factor in (("median", 1.0), ("low", 1 - INTERVAL_RATIO), ("high", 1 + INTERVAL_RATIO)):
                yield Sample(sample.metric, factor * sample.value, sample.labels), {**owner, "bound": bound}


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
        results.RUN_WAITING_RATIO.at(0.31),
        results.RUN_COLLECTIVE_WAIT_SECONDS.at(0.0018, collective="all_reduce"),
        results.RUN_COLLECTIVE_TRANSFER_SECONDS.at(0.0041, collective="all_reduce"),
        results.RUN_TRACED_BUS_BANDWIDTH.at(362e9, collective="all_reduce"),
        results.RUN_STRAGGLER_RATIO.at(0.06, rank=str(HELD_BACK), cause="compute"),
        results.RUN_CLOCK_RESIDUAL_SECONDS.at(4e-6),
        *(
            metric.at(at_worst if rank == HELD_BACK else elsewhere, rank=str(rank))
            for metric, at_worst, elsewhere in (
                (results.RUN_LAST_RATIO, 0.83, 0.02),
                (results.RUN_HELD_UP_RATIO, 0.06, 0.001),
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
        results.RUN_BUBBLE_RATIO.at(0.34, account="measured"),
        results.RUN_BUBBLE_RATIO.at(0.27, account="expected"),
        results.RUN_BUBBLE_PART_RATIO.at(0.27, part="schedule"),
        results.RUN_BUBBLE_PART_RATIO.at(0.04, part="imbalance"),
        results.RUN_BUBBLE_PART_RATIO.at(0.02, part="transfer"),
        results.RUN_BUBBLE_PART_RATIO.at(0.01, part="unexplained"),
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
            results.RUN_STAGE_ACTIVATION_BYTES.at((4 - stage) * 3 * _GIB, stage=str(stage), account="measured")
            for stage in range(4)
        ),
    ),
)
_RESULTS = (_SCALING, _WAITING)


# Made-up suites: a nightly of which a case failed, and one that goes on.

SUITE, SUITE_RUN = "made_nightly", "demonstration-nightly"
ACTIVE_SUITE, ACTIVE_SUITE_RUN = "made_smoke", "demonstration-smoke"
SUITE_S, DAY_S = 5400.0, 86_400.0
CASE_S = 30.0
_ACTIVE_CASES = ("single", "ddp", "fsdp", "gpipe")


def made_suites(begun_s: float, at_s: float) -> Iterator[Owned]:
    """Yield the suites so long after the demonstration's begin; a case of the active one ends every half minute.

    begun_s: Unix time of that begin; the nightly ended COMPLETED_AGO_S before it.
    """
    night_s = begun_s - COMPLETED_AGO_S - SUITE_S
    samples = (
        *_nightly(begun_s - COMPLETED_AGO_S),
        *_verdicts(night_s),
        *_active(begun_s, math.floor(at_s / CASE_S)),
    )
    for sample in samples:
        yield sample, {}


def _nightly(ended_s: float) -> Iterator[Sample]:
    yield suites.SUITE_LAST_START.at(ended_s - SUITE_S, suite=SUITE)
    yield suites.SUITE_LAST_END.at(ended_s, suite=SUITE)
    yield suites.SUITE_PERIOD.at(DAY_S, suite=SUITE)
    yield suites.SUITE_LAST_PROGRESS.at(ended_s, suite=SUITE, run=SUITE_RUN)
    for outcome, number in (("done", 14), ("failed", 1), ("skipped", 2)):
        yield suites.SUITE_LAST_CASES.at(number, suite=SUITE, run=SUITE_RUN, outcome=outcome)
        yield suites.SUITE_CASES.at(number, suite=SUITE, outcome=outcome)
    yield suites.SUITE_RUNS.at(1, suite=SUITE, outcome="failed")


def _verdicts(night_s: float) -> Iterator[Sample]:
    """Yield what the gate says of the nightly: a step that is longer for five nights, and a case that vanished."""
    figure = {"suite": SUITE, "ranks": str(RANKS), "hardware": "8 x made-up GPU", "figure": "step"}
    worse = {**figure, "case": STRATEGY, "series": SERIES}
    same = {**figure, "case": "fsdp", "series": "demonstration-fsdp"}
    for of_figure, verdict, change in ((worse, "confirmed", 0.058), (same, "same", 0.002)):
        yield gate.VERDICT.at(1, **of_figure, verdict=verdict)
        yield gate.VERDICT_NIGHT.at(night_s, **of_figure)
        yield gate.VERDICT_CHANGE.at(change, **of_figure)
    yield gate.VERDICT_CHANGE_LOW.at(0.053, **worse)
    yield gate.VERDICT_CHANGE_HIGH.at(0.068, **worse)
    yield gate.VERDICT_SINCE.at(night_s - 4 * DAY_S, **worse)
    cause = "made-up driver 1 -> 2 on the first bad night"
    yield gate.VERDICT_CAUSE.at(night_s, **worse, run=RUN, good_run="", cause=cause)
    yield gate.SUITE_NIGHT.at(night_s, suite=SUITE)
    for kind, number in (("vanished", 1), ("stopped", 0)):
        yield gate.SUITE_MISSING.at(number, suite=SUITE, kind=kind)


def _active(begun_s: float, done: int) -> Iterator[Sample]:
    active = {"suite": ACTIVE_SUITE, "run": ACTIVE_SUITE_RUN}
    yield suites.SUITE_LAST_START.at(begun_s, suite=ACTIVE_SUITE)
    yield suites.SUITE_LAST_PROGRESS.at(begun_s + CASE_S * done, **active)
    for outcome, number in (("done", done), ("running", 1)):
        yield suites.SUITE_LAST_CASES.at(number, **active, outcome=outcome)
    yield suites.SUITE_CASES.at(done, suite=ACTIVE_SUITE, outcome="done")
    yield suites.SUITE_CASE_INFO.at(1, **active, case=_ACTIVE_CASES[done % len(_ACTIVE_CASES)])


@contextmanager
def open_demonstration(
    *,
    host: str,
    port: int,
    polling: PollingConfig,
    on_notice: Callable[[str], None],
    config: Callable[[], ServerConfig] = ServerConfig,
) -> Iterator[Server]:
    """Serve something on every panel while the context is open.

    on_notice: is told first the server's address, then that it is a demonstration.

    Raises:
        InfrastructureFailed: the address cannot be served.
    """
    tell = once(on_notice)
    watch = NodeWatch(lambda: open_recorded_collectors(polling), beat_s=polling.beat_s, on_notice=tell)
    begun_s, unix_s = time.monotonic(), time.time()
    sources: tuple[Source, ...] = (
        watch.samples,
        lambda: made_ranks(time.monotonic() - begun_s, unix_s),
        lambda: made_ports(time.monotonic() - begun_s),
        lambda: made_results(unix_s - COMPLETED_AGO_S),
        lambda: made_suites(unix_s, time.monotonic() - begun_s),
    )
    with ExitStack() as stack:
        try:
            server = stack.enter_context(answering(sources, host=host, port=port, config=config, on_notice=tell))
        except CannotListen as error:
            raise refusal(error) from None
        tell(NOTICE)
        stack.enter_context(watch)
        yield server
