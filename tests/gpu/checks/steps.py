"""Checks of how steps are timed and traced: windows of the profiler, phases, and what observing costs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from statistics import median

from collectors.metrics import results
from collectors.metrics.agent import AGENT_CPU_SECONDS
from collectors.metrics.metric import Sample
from collectors.metrics.rank import PHASE_SECONDS, STEP_SECONDS, TRACED_STEP_SECONDS
from collectors.sample_log import Reading, read
from tests.gpu.check import Finding, figure, holds, within
from tests.gpu.readings import Ran, Unreadable, ran, rows, sample, scraped, told
from tests.gpu.session import Program, Session

OBSERVER_SHARE = 0.01
"""Of the median step, at steps of 50 ms or more. Source: what this project holds itself to."""
LEAST_STEP_S = 0.05
PROMISED_CHANGE = 0.01
"""Of the median step, where an agent polls NVML beside it. Source: the same promise."""
NS_PER_US = 1000
HOST = "host"
"""Begins or ends the name of a phase that is of the host's time and so not a part of the device's step."""
KERNEL_SUMS = (0.9, 1.1)
"""The same kernels in another process: a GPU's clock moves their time by some percent."""


def window(session: Session) -> Iterator[Finding]:
    """One traced window: is it the device's, and does its Timeline say what kineto's file says?"""
    words = ("--precision", session.half, "--steps", "5", "--trace-steps", "3", "--keep-traces")
    (done,) = session.commands.run(session.observed("single", *session.shape("125m", 8), *words))
    run = ran(done)
    kept, exported = run.folder / "rank0.timeline.npz", run.folder / "rank0.trace.json.gz"
    looked, of_kept, of_exported = session.commands.run(
        session.script("windows", "--files", str(kept)),
        session.analysed("summary", kept),
        session.analysed("summary", exported),
    )
    found = told(looked)
    if not session.is_rehearsal:
        yield holds(
            "spans",
            found["is_device"],
            seen="the device's" if found["is_device"] else "the host's",
            expected="the device's",
            source="CUPTI ran",
        )
    apart = most_apart_ns(rows(told(of_kept), "traces"), rows(told(of_exported), "traces"))
    yield within(
        "figures of npz and json.gz apart",
        apart,
        high=NS_PER_US,
        unit="ns",
        source="kineto writes microseconds with decimals",
    )
    yield from _kernel_sums(session, found["compute_work_s"][0] / max(1, found["steps"]))


def _kernel_sums(session: Session, ours_s: float) -> Iterator[Finding]:
    shape = ("--shape", "tiny") if session.is_rehearsal else ("--shape", "125m")
    (done,) = session.commands.run(
        session.script("plain_training", *shape, "--steps", session.count(5), "--precision", session.half)
    )
    plain_s = told(done)["kernel_s"]
    if plain_s is None:
        yield figure("computing of a step", 1e3 * ours_s, unit="ms")
        return
    low, high = KERNEL_SUMS
    yield within(
        "kernels of a step, ours / plain profile's",
        ours_s / plain_s,
        low=low,
        high=high,
        source=f"key_averages of the same model in torch.profiler: {1e3 * plain_s:.4g} ms",
    )


def most_apart_ns(one: list[dict[str, object]], other: list[dict[str, object]]) -> int:
    """The largest difference of two such tables, in nanoseconds.

    Raises:
        Unreadable: they have other rows, or what the one tells the other does not.
    """
    if len(one) != len(other):
        raise Unreadable(f"the kept window has {len(one)} ranks and the exported {len(other)}")
    apart = 0
    for left, right in zip(one, other, strict=True):
        for name in left.keys() - {"rank", "overlap_share", "exposed_share", "idle_share"}:
            ours, theirs = left[name], right[name]
            if (ours is None) != (theirs is None):
                raise Unreadable(f"{name} is {ours} in the kept window and {theirs} in the exported")
            if isinstance(ours, int) and isinstance(theirs, int):
                apart = max(apart, abs(ours - theirs))
    return apart


def windows(session: Session) -> Iterator[Finding]:
    """Windows between measured steps: what the first costs, and whether later steps are as fast as before."""
    steps = "20" if not session.is_rehearsal else "6"
    words = ("--precision", session.half, "--steps", steps, "--trace-every", "5" if not session.is_rehearsal else "2")
    (done,) = session.commands.run(session.observed("single", *session.shape("125m", 8), *words, "--trace-steps", "3"))
    run = ran(done)
    groups = groups_of_steps(run)
    measured = [times for mark, times in groups if mark == "measured"]
    traced = [times for mark, times in groups if mark == "traced"]
    if len(measured) < 2 or not traced:
        raise Unreadable(f"the log has {len(measured)} stretches of measured steps and {len(traced)} windows")
    before, after = median(measured[0]), median(times_s for group in measured[1:] for times_s in group)
    if session.is_rehearsal:
        yield figure("steps after windows / before", after / before)
    else:
        yield within(
            "steps after windows / before",
            after / before,
            high=1.02,
            source="a window ends with itself; 2 % for clocks",
        )
    yield figure("first traced step / the window's others", traced[0][0] / median(traced[0][1:] or traced[0]))
    yield figure("traced step / measured step", median(traced[-1]) / before, beside="a window may cost 5 %")


def groups_of_steps(run: Ran) -> list[tuple[str, list[float]]]:
    """Stretches of steps of one mark, in the order in which rank 0 ran them, with the seconds of each step."""
    metric_of = {"measured": STEP_SECONDS, "traced": TRACED_STEP_SECONDS}
    records = [one for one in read(run.folder / "rank0.jsonl").records if isinstance(one, Reading)]
    known = [one for one in records if one.mark in metric_of]
    return [
        (mark, [sample(one.samples, metric_of[mark]) for one in group])
        for mark, group in groupby(known, key=lambda one: str(one.mark))
    ]


def loader(session: Session) -> Iterator[Finding]:
    """A loader that is slower than nothing and faster than the device: phases are parts of the step."""
    words = ("--precision", session.half, "--steps", session.count(20), "--trace-steps", "0")
    (done,) = session.commands.run(
        session.observed("single", *session.shape("125m", 8), *words, "--option", "loader_delay_ms=20")
    )
    run = ran(done)
    ratios = [parts_s / step_s for parts_s, step_s in map(_phases, run.readings("measured"))]
    phases = {phase: seconds for (phase,), seconds in run.values(results.RUN_PHASE_SECONDS).items()}
    yield figure("phases", ", ".join(f"{phase} {1e3 * seconds:.3g} ms" for phase, seconds in phases.items()))
    yield within(
        "sum of phases / step, at most",
        max(ratios),
        high=1.001,
        source="docs/reference/figures.md: phases add up to at most the step",
    )


def _phases(samples: list[Sample]) -> tuple[float, float]:
    """The sum of a step's phases, without those of the host's time, and the step."""
    parts_s = sum(one.value for one in samples if one.metric == PHASE_SECONDS.name and HOST not in one.labels["phase"])
    return parts_s, sample(samples, STEP_SECONDS)


def observer(session: Session) -> Iterator[Finding]:
    """What our looks cost a step: measured in the run, and by what one look at the allocator's account takes."""
    words = ("--precision", session.half, "--steps", session.count(100), "--trace-steps", "0")
    looked, done = session.commands.run(session.script("memory_account"), session.observed("single", *words))
    account, run = told(looked), ran(done)
    step_s = run.value(results.RUN_STEP_SECONDS)
    share = run.value(results.RUN_OBSERVER_RATIO)
    phases = len(run.values(results.RUN_PHASE_SECONDS))
    yield figure("one look at the end of a phase", 1e6 * account["phase_s"], unit="us")
    yield figure("tiny step", 1e3 * step_s, unit="ms")
    if step_s >= LEAST_STEP_S:
        yield within("observer's share", share, high=OBSERVER_SHARE, source="the promise, at steps of 50 ms or more")
    else:
        yield figure("observer's share", share, beside=f"{OBSERVER_SHARE:g} is promised from 50 ms on")
    yield within(
        "looks / a step of 50 ms",
        (phases * account["phase_s"] + account["step_s"]) / LEAST_STEP_S,
        high=OBSERVER_SHARE,
        source=f"{phases} phases and a step's end by the cost above; the promise",
    )


def polling(session: Session) -> Iterator[Finding]:
    """Steps with and without an agent that asks NVML ten times a second: NVML's lock is the driver's."""
    words = ("--precision", session.half, "--steps", session.count(20), "--trace-steps", "0")
    program = session.observed("single", *session.shape("125m", 8), *words)
    steps_s = []
    cpu_s = None
    for is_polled in (False, True, False):
        if not is_polled:
            (done,) = session.commands.run(program)
        else:
            with session.beside(server(session, "--beat", "0.1")) as agent:
                url = agent.first_line().removeprefix("serving ").strip()
                before = _agent_cpu_s(session.commands.get(url))
                (done,) = session.commands.run(program)
                cpu_s = (_agent_cpu_s(session.commands.get(url)) - before) / done.elapsed_s
        steps_s.append(ran(done).value(results.RUN_STEP_SECONDS))
    noise = abs(steps_s[2] / steps_s[0] - 1)
    change = steps_s[1] / median((steps_s[0], steps_s[2])) - 1
    if session.is_rehearsal:
        yield figure("polled step / others, less 1", change)
    else:
        yield within(
            "polled step / others, less 1",
            change,
            high=PROMISED_CHANGE + noise,
            source=f"the promise of {PROMISED_CHANGE:g}, and {noise:.2g} by which the two others differ",
        )
    if cpu_s is not None:
        yield figure("agent's CPU at this beat", cpu_s, unit="cores", beside="0.01 is promised at a beat of 1 s")


def server(session: Session, *words: str) -> Program:
    """`observatory serve` of this check's runs, on a free port; its first line says where."""
    runs = str(session.folder / "runs")
    return Program(("observatory", "serve", "--port", "0", "--runs", runs, "--store", session.store, *words))


def _agent_cpu_s(page: str) -> float:
    found = scraped(page, AGENT_CPU_SECONDS)
    if not found:
        raise Unreadable(f"/metrics has no {AGENT_CPU_SECONDS.name}")
    return found[0][1]
