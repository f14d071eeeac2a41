"""The demonstration of `observatory serve --demo`: recorded GPUs, and a made-up run, InfiniBand ports and results.

Needs neither a GPU nor a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from bench.serve.demo_results import FAILED_STRATEGY, results_of
from bench.serve.gpu_placement import with_ranks
from bench.serve.latest_results import statistics_of
from bench.serve.server import answering, once, refusal
from collectors.host.process_owner import ProcessOwner
from collectors.metrics import agent, gate, host, results, run_counts, suites
from collectors.metrics import rank as rank_metrics
from collectors.metrics.gpu import RANK_GPU, RANK_GPU_MEMORY
from collectors.metrics.metric import Sample
from collectors.node.registry import OPENERS, USUAL, NodeCollector, Opener, PollingConfig, open_collectors, open_nvml
from collectors.node.watch import NodeWatch
from collectors.nvml.recorder import EIGHT_GPUS, load
from collectors.nvml.replay import RecordedNvml
from collectors.prometheus.exposition import Exemplar, Histogram, Observations, Owned, Source, histogram_of
from collectors.prometheus.http_server import Server, ServerConfig
from collectors.sockets import CannotListen

# Collectors of a node whose GPUs are an endless recording, and whose host is this machine.

NOTICE = (
    "this is a demonstration: the GPUs are a recording; the run, the results, the suites and InfiniBand ports called"
    " made_* are made up; only the rest of the host and the agent are this machine's"
)


_IN_A_POD, _IN_A_JOB = 5000, 5001
"""The recorded processes on slices of the GPU split by MIG; those on whole GPUs are the made-up run's ranks."""


def made_owner(pid: int) -> ProcessOwner:
    """Return the made-up owner of a recorded process."""
    if pid == _IN_A_POD:
        pod_uid = "6d3b1f0a-52c4-4e8b-9d57-0a1b2c3d4e5f"
        return ProcessOwner(process="made_server", container_id="0f1e2d3c" * 8, pod_uid=pod_uid)
    return ProcessOwner(process="python3", slurm_job="4711" if pid == _IN_A_JOB else "")


def open_recorded_collectors(polling: PollingConfig = USUAL) -> tuple[NodeCollector, ...]:
    """Open the registered node collectors, with recorded GPUs in place of this node's."""
    recorded: Opener = lambda polling: open_nvml(  # noqa: E731
        polling, RecordedNvml(load(EIGHT_GPUS)).nvml, owner_of=made_owner
    )
    openers = tuple((name, recorded if name == "nvml" else opener) for name, opener in OPENERS)
    return open_collectors(polling, openers)


# A made-up run: one rank on each healthy GPU of the recorded node, all as slow as the rank on the GPU that grows hot.

RUN = "demonstration"
STRATEGY, SERIES, SLOT, HOST = "ddp", "demonstration-ddp", "0", "demonstration"
RANKS, _FIRST_PID = 6, 4000
"""The recorded node has two more GPUs: one falls off the bus, one is split by MIG."""
LAP_S = 600.0
HOT_S, COOL_S = 240.0, 360.0
STEP_S, HOT_STEP_S = 0.5, 0.62
LONG_RATIO, LONG_EACH = 1.3, 64
"""How much longer one step in LONG_EACH takes; the newest step of the other metrics is never a long one."""
STEP_TOKENS = 32_768
_PHASES = {"data": 0.01, "forward": 0.29, "backward": 0.61, "optimizer": 0.06}
"""Share of each phase in a step; the rest is waiting."""
_DATA_WAIT = 0.06
"""Share of a step that the host waits for a batch; the GPU has work queued for most of it."""
_MFU_RATIO, _MEASURED_MFU_RATIO = 0.41, 0.52
_EXPOSED, _HIDDEN, _COMPUTED, _COPIED = 0.07, 0.21, 0.88, 0.01
"""Shares of a traced step: communication that is exposed, communication that is hidden, computation, exposed copies."""
_GIB = 1 << 30
_STATE = {"parameters": 13 * _GIB, "gradients": 13 * _GIB, "optimizer": 26 * _GIB}
_ALLOCATED, _PEAK, _RESERVED = 54 * _GIB, 97 * _GIB, 104 * _GIB
_ACTIVE, _INACTIVE_SPLIT = _ALLOCATED + _GIB // 4, 3 * _GIB
"""Active: allocated memory plus what pending messages still hold. Inactive split: the fragmentation."""
_CONTEXT = _GIB // 2
"""What the driver counts for a process in addition to torch's reserved memory."""
_PHASE_PEAKS = {"data": 54 * _GIB, "forward": 91 * _GIB, "backward": 97 * _GIB, "optimizer": 81 * _GIB}


def watched(samples: Iterable[Owned]) -> Iterator[Owned]:
    """Yield the samples of the recorded node; add run and rank to those of the ranks' processes."""
    ranks = {(HOST, str(_FIRST_PID + rank)): (RUN, str(rank)) for rank in range(RANKS)}
    for sample in with_ranks((sample for sample, _ in samples), ranks, host=HOST):
        yield sample, {}


def made_ranks(at_s: float, begun_s: float = 0.0) -> Iterator[Owned]:
    """Yield the made-up run, and its ranks' newest step, traced step and memory.

    at_s: time since the run began. begun_s: Unix time of the beginning.
    """
    of_case = {**_case_labels(STRATEGY, RANKS), "nodes": "1", "suite": "", "case": "", "commit": ""}
    yield agent.RUN_INFO.at(1, run=RUN, slot=SLOT, series=SERIES, **of_case), {}
    yield agent.RUN_LAST_PROGRESS.at(begun_s + at_s, run=RUN, slot=SLOT), {}
    for rank in range(RANKS):
        owner = {"rank": str(rank), "slot": SLOT}
        yield agent.RANK_INFO.at(1, run=RUN, host=HOST), owner
        yield RANK_GPU.at(1, run=RUN, gpu=str(rank), slice=""), owner
        yield RANK_GPU_MEMORY.at(_RESERVED + _CONTEXT, gpu=str(rank), slice=""), owner
        for sample in (*_step(at_s, rank), *_traced(at_s), *_memory()):
            yield sample, owner
        for mark, number in (("warm_up", 0), ("measured", math.floor(steps_by(at_s)))):
            yield run_counts.STEPS.at(number, mark=mark), owner
    yield _durations(at_s, begun_s), {}


def _case_labels(strategy: str, ranks: int, *, shape: str = "8b", device: str = "cuda") -> dict[str, str]:
    name = ", ".join(part for part in (f"{strategy} on {ranks}", shape, "bf16", device) if part)
    what = {"device": device, "shape": shape, "precision": "bf16"}
    return {"name": name, "strategy": strategy, "ranks": str(ranks), **what}


def steps_by(at_s: float) -> float:
    """Return the steps since the run began. From HOT_S to COOL_S of each lap the GPU is hot, and steps are slow.

    Example: after 300 s, of which 60 s are hot, 60 / 0.62 + 240 / 0.5 = 576.8 steps.
    """
    hot_s = _hot_s(at_s)
    return hot_s / HOT_STEP_S + (at_s - hot_s) / STEP_S


def _hot_s(at_s: float) -> float:
    """Return how long the GPU has been hot since the run began."""
    laps, into_s = divmod(at_s, LAP_S)
    return laps * (COOL_S - HOT_S) + min(max(into_s - HOT_S, 0.0), COOL_S - HOT_S)


def _step_s(at_s: float) -> float:
    return HOT_STEP_S if HOT_S <= at_s % LAP_S < COOL_S else STEP_S


def _of_rank(rank: int) -> float:
    """Return how long a step of a rank takes, relative to the middle rank's."""
    return 1 + (rank - RANKS / 2) / 1e3


def _durations(at_s: float, begun_s: float) -> Histogram:
    """Return the step times of all ranks since the run began; exemplars are the newest steps."""
    observations, hot_s = Observations(), _hot_s(at_s)
    newest, newest_s = math.floor(steps_by(at_s)) - 1, _step_s(at_s)
    exemplars = {}
    for rank in range(RANKS):
        for step_s, spent_s in ((HOT_STEP_S, hot_s), (STEP_S, at_s - hot_s)):
            number = math.floor(spent_s / step_s)
            bucket = observations.observe(_of_rank(rank) * step_s, number - number // LONG_EACH)
            observations.observe(_of_rank(rank) * LONG_RATIO * step_s, number // LONG_EACH)
            if step_s == newest_s and newest >= 0:
                labels = {"run": RUN, "trial": "0", "rank": str(rank), "step": str(newest)}
                time_ns = round((begun_s + at_s) * 1e9)
                exemplars[bucket] = Exemplar(labels=labels, value=_of_rank(rank) * step_s, time_ns=time_ns)
    return histogram_of(run_counts.STEP_DURATION, [observations], exemplars=exemplars, slot=SLOT)


def _step(at_s: float, rank: int) -> Iterator[Sample]:
    step_s = _step_s(at_s) * _of_rank(rank)
    yield rank_metrics.STEP_SECONDS.at(step_s)
    for phase, share in _PHASES.items():
        yield rank_metrics.PHASE_SECONDS.at(share * step_s, phase=phase)
    yield rank_metrics.DATA_WAIT_SECONDS.at(_DATA_WAIT * step_s)
    yield rank_metrics.TOKENS.at(STEP_TOKENS * math.floor(steps_by(at_s)))
    yield rank_metrics.TOKENS_PER_SECOND.at(STEP_TOKENS / step_s)
    yield rank_metrics.MFU.at(_MFU_RATIO * STEP_S / step_s)
    yield rank_metrics.MEASURED_MFU.at(_MEASURED_MFU_RATIO * STEP_S / step_s)
    yield rank_metrics.LOSS.at(1.8 + 9.0 * math.exp(-steps_by(at_s % LAP_S) / 300) + rank / 1e3)
    yield rank_metrics.LEARNING_RATE.at(3e-4)
    yield rank_metrics.GRADIENT_NORM.at(0.4 + 6.0 * math.exp(-steps_by(at_s % LAP_S) / 100))
    yield rank_metrics.OBSERVER_SECONDS.at(2e-4)


def _traced(at_s: float) -> Iterator[Sample]:
    step_s = _step_s(at_s)
    yield rank_metrics.TRACED_STEP_SECONDS.at(step_s)
    yield rank_metrics.COMPUTE_SECONDS.at(_COMPUTED * step_s)
    yield rank_metrics.COMMUNICATION_SECONDS.at((_EXPOSED + _HIDDEN) * step_s)
    yield rank_metrics.OVERLAP_SECONDS.at(_HIDDEN * step_s)
    yield rank_metrics.EXPOSED_COMMUNICATION_SECONDS.at(_EXPOSED * step_s)
    yield rank_metrics.EXPOSED_COPY_SECONDS.at(_COPIED * step_s)
    yield rank_metrics.IDLE_SECONDS.at((1 - _COMPUTED - _EXPOSED - _COPIED) * step_s)
    yield rank_metrics.COLLECTIVE_SECONDS.at((_EXPOSED + _HIDDEN) * step_s, collective="all_reduce")
    yield rank_metrics.COLLECTIVE_OVERLAP_RATIO.at(_HIDDEN / (_EXPOSED + _HIDDEN), collective="all_reduce")
    yield rank_metrics.PAYLOAD_BYTES.at(_STATE["gradients"], collective="all_reduce", axis="data")
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


# Made-up InfiniBand ports, since few machines of a demonstration have any; one port loses its link for a while.

DEVICES = 4
BROKEN = "made_3"
DOWN_S, UP_S = 120.0, 360.0
"""When the broken port has no link, in each lap."""
LINK_BYTES_PER_S = 400e9 / 8
_STEP_BYTES = 6.5e9
"""Bytes that a port carries each way in a step of the made-up run."""


def made_ports(at_s: float) -> Iterator[Owned]:
    """Yield state, speed, bytes and errors of each port. at_s: time since the run began."""
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


# Made-up results, with intervals.

INTERVAL_RATIO = 0.02
"""Half the width of each result's interval, as a share of its median."""
COMPLETED_AGO_S = 3600.0
_ENDS = {
    STRATEGY: {"done": 57, "failed": 1, "timed_out": 1, "interrupted": 2},
    "one_f_one_b": {"done": 30, "failed": 0, "timed_out": 0, "interrupted": 0},
    FAILED_STRATEGY: {"done": 29, "failed": 1, "timed_out": 0, "interrupted": 0},
}
"""How often runs of each strategy ended with each outcome."""
_LONGER = 0.058
"""How much longer a step of the slow series is than in the nights before."""
_VERSIONS = {"commit": "", "torch": "made-up", "driver": "made-up", "nccl": "made-up", "gpu": "8 x made-up GPU"}


def made_results(completed_s: float) -> Iterator[Owned]:
    """Yield the newest results that a history would have, with intervals.

    completed_s: Unix time of all results but one, whose newest run failed then.
    """
    shape = {"ranks": str(RANKS), "device": "cuda", "precision": "bf16"}
    for strategy, ends in _ENDS.items():
        for outcome, number in ends.items():
            yield run_counts.RUNS.at(number, strategy=strategy, outcome=outcome), {}
    failed = {"strategy": FAILED_STRATEGY, **shape, "series": f"demonstration-{FAILED_STRATEGY}"}
    name = _case_labels(FAILED_STRATEGY, RANKS)["name"]
    yield agent.RUN_LAST_FAILURE.at(completed_s, **failed, name=name, run=RUN, outcome="failed"), {}
    for result in results_of(ranks=RANKS, step_s=STEP_S, step_tokens=STEP_TOKENS):
        own = {} if result.name is None else {"name": f"{result.name} on {result.ranks}", "precision": "unknown"}
        of_case = {
            **_case_labels(result.strategy, result.ranks, shape=result.shape, device=result.device),
            **own,
            "options": "",
            "suite": SUITE,
            "case": result.strategy,
        }
        shape = {name: of_case[name] for name in ("ranks", "device", "precision")}
        owner = {"strategy": result.strategy, **shape, "series": result.series}
        yield agent.RESULT_INFO.at(1, series=result.series, run=RUN, **of_case, **_VERSIONS), {}
        yield agent.RUN_LAST_COMPLETION.at(completed_s - (DAY_S if result.is_old else 0), **owner), {}
        yield agent.SERIES_NEWEST_RUN.at(1, **owner, run=RUN, outcome="failed" if result.is_old else "done"), {}
        for sample in result.medians:
            if sample.metric == results.RUN_STEP_SECONDS.name:
                # The step that the gate finds longer.
                usual_s = sample.value / (1 + (_LONGER if result.series == SERIES else 0.002))
                yield agent.USUAL_STEP_SECONDS.at(usual_s, **owner), {}
            elif sample.metric == results.RUN_SCALING_EFFICIENCY.name:
                yield agent.USUAL_EFFICIENCY.at(sample.value * 1.002, **owner, **sample.labels), {}
        for sample in result.medians:
            low, high = (factor * sample.value for factor in (1 - INTERVAL_RATIO, 1 + INTERVAL_RATIO))
            for shown in statistics_of(sample.metric, sample.labels, (sample.value, low, high)):
                yield shown, owner


# Made-up suites: a nightly with a failed case, and an active one.

SUITE, SUITE_RUN = "made_nightly", "demonstration-nightly"
ACTIVE_SUITE, ACTIVE_SUITE_RUN = "made_smoke", "demonstration-smoke"
SUITE_S, DAY_S = 5400.0, 86_400.0
CASE_S = 30.0
_ACTIVE_CASES = ("single", "ddp", "fsdp", "gpipe")


def made_suites(begun_s: float, at_s: float) -> Iterator[Owned]:
    """Yield the suites; a case of the active one ends every half minute.

    begun_s: Unix time of the demonstration's beginning; the nightly ended COMPLETED_AGO_S before it. at_s: time since
    then.
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
    failed = {"case": FAILED_STRATEGY, "case_run": RUN, "outcome": "failed", "rank": "2", "cause": "rank 2 was killed"}
    yield suites.SUITE_CASE_FAILURE.at(1, suite=SUITE, run=SUITE_RUN, **failed)


def _verdicts(night_s: float) -> Iterator[Sample]:
    """Yield the gate's verdicts on the nightly: a step that has been longer for five nights, and a vanished case."""
    figure = {"suite": SUITE, "ranks": str(RANKS), "hardware": "8 x made-up GPU", "figure": "step"}
    worse = {**figure, "case": STRATEGY, "series": SERIES}
    same = {**figure, "case": "fsdp", "series": "demonstration-fsdp"}
    for of_figure, verdict, change in ((worse, "confirmed", _LONGER), (same, "same", 0.002)):
        yield gate.VERDICT.at(1, **of_figure, verdict=verdict)
        yield gate.VERDICT_NIGHT.at(night_s, **of_figure)
        yield gate.VERDICT_CHANGE.at(change, **of_figure)
    yield gate.VERDICT_CHANGE_LOW.at(0.053, **worse)
    yield gate.VERDICT_CHANGE_HIGH.at(0.068, **worse)
    yield gate.VERDICT_SINCE.at(night_s - 4 * DAY_S, **worse)
    yield gate.ACCEPTED_CHANGE.at(0.061, **worse)
    yield gate.ACCEPTED_EFFICIENCY.at(0.8, **{**worse, "figure": "efficiency weak"})
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
    """Serve samples for every panel while the context is open.

    on_notice: called first with the server's address, then with the notice that this is a demonstration.

    Raises:
        InfrastructureFailed: the address cannot be served.
    """
    tell = once(on_notice)
    watch = NodeWatch(lambda: open_recorded_collectors(polling), beat_s=polling.beat_s, on_notice=tell)
    begun_s, unix_s = time.monotonic(), time.time()
    sources: tuple[Source, ...] = (
        lambda: watched(watch.samples()),
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
