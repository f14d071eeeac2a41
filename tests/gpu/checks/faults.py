"""Checks of ends: fire drills and whom they blame, memory that comes back, processes that leave with work queued."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.engines.node.shutdown import ON_CUDA
from collectors.metrics.gpu_health import GPU_XIDS
from collectors.metrics.results import RUN_LOSS
from tests.gpu.check import Finding, figure, holds, within
from tests.gpu.checks.traffic import counted_as_expected
from tests.gpu.readings import Ran, Unreadable, nvidia_smi, ran, smi_numbers, summary_of, told
from tests.gpu.session import Completed, Session

KINDS = {"kill": "killed", "raise": "error", "hang": "hung", "exit": "left", "leave": "left"}
"""What a fault of a fire drill is called as a cause. `exit` raises SystemExit, which a rank's log can still tell."""
LIMIT_S = 30
NEAR_MIB = 100.0
STEP = 7


def drills(
    session: Session, *, ranks: int = 1, culprit: int = 0, faults: Sequence[str] = ("kill", "raise", "hang")
) -> Iterator[Finding]:
    """Each fault in one rank: the cause is named with its rank; its peers end."""
    before = None if session.is_rehearsal else _used_mib(session)
    strategy = "single" if ranks == 1 else "ddp"
    programs = [
        session.observed(
            strategy,
            *("--ranks", str(ranks), "--steps", "20", "--limit", str(LIMIT_S)),
            *("--inject", f"{fault}@{culprit}:{STEP}"),
        )
        for fault in faults
    ]
    for fault, done in zip(faults, session.commands.run(*programs), strict=True):
        yield from _blamed(session, fault, done, culprit)
    if before is not None:
        yield within(
            "memory in use afterwards, less before",
            _used_mib(session) - before,
            high=NEAR_MIB,
            unit="MiB",
            source="no process is left",
        )


def _blamed(session: Session, fault: str, done: Completed, culprit: int) -> Iterator[Finding]:
    summary = summary_of(done)
    cause = summary.cause
    kinds = {KINDS[fault], "error"} if fault == "exit" else {KINDS[fault]}
    yield holds(
        f"{fault}: blamed",
        done.code == 3 and cause is not None and cause.kind in kinds and cause.rank == culprit,
        seen=f"code {done.code}, "
        + ("no cause" if cause is None else f"{cause.kind}, rank {cause.rank}: {cause.text}"),
        expected=f"code 3, {' or '.join(sorted(kinds))}, rank {culprit}",
        source="the fault that was asked for",
    )
    if session.is_rehearsal:
        yield figure(f"{fault}: seconds until the command ended", done.elapsed_s, unit="s")
        return
    yield within(
        f"{fault}: seconds until the command ended",
        done.elapsed_s,
        high=2.0 * LIMIT_S,
        unit="s",
        source=f"the limit of {LIMIT_S} s for the trial, and as much to start and end",
    )


def leaving(session: Session) -> Iterator[Finding]:
    """How long the driver holds on to a process that left with work queued; our limits must be above that."""
    (done,) = session.commands.run(session.script("leaving"))
    found = told(done)
    yield figure("held", found["held_bytes"] / 2**30, unit="GiB")
    yield within(
        "process gone after",
        found["gone_s"],
        high=ON_CUDA.killed_s,
        unit="s",
        source="bench.engines.node.shutdown.ON_CUDA.killed_s",
    )
    if session.is_rehearsal:
        return
    if found["free_s"] is None:
        raise Unreadable("the memory of a process that left was still in use when this was given up")
    yield within(
        "memory free after",
        found["free_s"],
        high=ON_CUDA.killed_s + ON_CUDA.freed_s,
        unit="s",
        source="bench.engines.node.shutdown.ON_CUDA.killed_s and freed_s",
    )


def shared(session: Session) -> Iterator[Finding]:
    """Strategies on several ranks of one GPU, by gloo: traffic by law, and one rank's losses."""
    common = ("--backend", "gloo", "--steps", session.count(5), "--trace-steps", "2")
    ranks = {"ddp": 2, "zero1": 2, "fsdp": 2, "hsdp": 4, "tensor_parallel": 2, "ulysses": 2, "parameter_server": 2}
    strategies = tuple(ranks) if not session.is_rehearsal else ("ddp", "tensor_parallel")
    # Half of them at a time: each has a runner, an agent, a forkserver and its ranks.
    for some in (strategies[::2], strategies[1::2]):
        programs = [session.observed(name, "--ranks", str(ranks[name]), *common) for name in some]
        for name, done in zip(some, session.commands.run(*programs), strict=True):
            yield from done_and_counted(name, done)
    check = ("--ranks", "2", "--backend", "gloo", "--check-convergence", "--steps", session.count(5))
    (checked,) = session.commands.run(session.observed("ddp", *check))
    verdict = told(checked)
    yield holds(
        "ddp --check-convergence",
        verdict["outcome"] == "agrees",
        seen=str(verdict["outcome"]),
        expected="agrees",
        source="the tolerance of the check itself",
    )


def done_and_counted(name: str, done: Completed) -> Iterator[Finding]:
    """Whether the run of a strategy ended well, and counted what its law expects; its failure is a finding."""
    try:
        run = ran(done)
    except Unreadable as error:
        yield holds(name, False, seen=str(error), expected="done", source="exit code 0")
        return
    yield from counted_as_expected(name, run)
    if run.values(RUN_LOSS):
        yield figure(f"{name}: loss", run.value(RUN_LOSS))


def xids(session: Session) -> Iterator[Finding]:
    """Whether a rank that is killed with kernels in flight leaves an XID in the node's log."""
    words = ("--steps", "20", "--limit", str(LIMIT_S), "--inject", f"kill@0:{STEP}", "--precision", session.half)
    (done,) = session.commands.run(session.observed("single", *session.shape("125m", 8), *words))
    summary = summary_of(done)
    yield from _blamed(session, "kill", done, 0)
    beats = Ran(summary=summary, elapsed_s=done.elapsed_s).node_beats()
    seen = sorted(
        {one.labels["xid"] for _, samples in beats for one in samples if one.metric == GPU_XIDS.name and one.value}
    )
    yield figure("XIDs", ", ".join(seen) or "none", beside="none, or 43 and 45 of a process that ended")


def _used_mib(session: Session) -> float:
    rows = smi_numbers(nvidia_smi(session.commands, "--query-gpu=memory.used", "--format=csv,noheader,nounits"))
    return sum(row[0] or 0.0 for row in rows)
