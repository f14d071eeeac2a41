"""30 short cases of 1 to 8 ranks through our engine, beside `torchrun` case by case, in turn, with their 95 % interval.

Both sides measure the same trial of each case by the same code and write the same logs: ours as fresh ranks of one
agent, whose start and end count in its total; torchrun's as `bench.session.torchrun`. There is no traced window, so no
profiler starts in torchrun's ranks; our forkserver has started its own before.

    python -m tests.benchmarks.runner [--rounds N] [--cases N]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from bench.case import Case
from bench.engines.local import LocalEngine
from bench.machine import machine
from bench.rank.messages import TrialOrder
from bench.results.estimate import estimate, ratio
from bench.session.case_args import CaseArgs, case_of_args, read_node
from bench.store.run_dir import begin
from collectors.metrics.results import RUN_STEP_SECONDS
from collectors.sample_log import Opened, read

PROMISE = 10.0
LIMIT_S = 300.0
CASES: dict[int, tuple[str, ...]] = {
    1: ("single", "ddp", "zero1", "fsdp", "matmul"),
    2: (
        *("ddp", "zero1", "zero2", "fsdp", "tensor_parallel", "ring_attention", "ulysses"),
        *("pipeline_naive", "gpipe", "one_f_one_b", "zero_bubble", "parameter_server"),
    ),
    4: ("ddp", "zero1", "zero2", "fsdp", "hsdp", "ring_attention", "ulysses", "gpipe", "one_f_one_b"),
    8: ("ddp", "zero1", "fsdp", "ring_attention"),
}
"""Strategies by their ranks."""
DIMENSIONS = {
    "layers": 4,
    "width": 32,
    "heads": 4,
    "kv_heads": 4,
    "mlp_width": 64,
    "vocabulary": 64,
    "sequence": 16,
    "batch": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one round of one side took, in seconds.

    cases_s: of each case. starts_s: of each case, from its order until its last rank began to log.
    """

    wall_s: float
    cpu_s: float
    cases_s: tuple[float, ...]
    starts_s: tuple[float, ...]


@dataclass(slots=True)
class Side:
    """What one side's rounds took. In a round both sides take turns, case by case; each adds up its own time."""

    costs: list[Cost] = field(default_factory=list)
    cpu_s: float = 0.0
    beside_s: float = 0.0
    _cases_s: list[float] = field(default_factory=list)
    _starts_s: list[float] = field(default_factory=list)

    def add_case(self, wall_s: float, start_s: float) -> None:
        """Add a case to the running round."""
        self._cases_s.append(wall_s)
        self._starts_s.append(start_s)

    def end_round(self) -> None:
        """End the running round."""
        self.costs.append(
            Cost(
                wall_s=sum(self._cases_s) + self.beside_s,
                cpu_s=self.cpu_s,
                cases_s=tuple(self._cases_s),
                starts_s=tuple(self._starts_s),
            )
        )
        self.cpu_s, self.beside_s, self._cases_s, self._starts_s = 0.0, 0.0, [], []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", type=int, default=None, help="take this many of the cases, spread over all")
    arguments = parser.parse_args()
    cases = short_cases()
    if arguments.cases is not None:
        cases = cases[:: -(-len(cases) // arguments.cases)]
    ours, theirs = Side(), Side()
    for number in range(arguments.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            if number:
                _round(cases, Path(folder), ours, theirs)
                print(f"round {number}: {ours.costs[-1].wall_s:.1f} and {theirs.costs[-1].wall_s:.1f} s", flush=True)
            else:  # What both import comes from the disk.
                _round(cases[:1], Path(folder), Side(), Side())
    print(report(cases, ours.costs, theirs.costs))


def short_cases() -> list[Case]:
    """Return the cases: three steps after one of warm-up, of a model that is too small to matter."""
    node = read_node()
    return [
        case_of_args(
            CaseArgs(
                strategy=strategy,
                dimensions={} if strategy == "matmul" else DIMENSIONS,
                device="cpu",
                trials=1,
                steps=3,
                warm_up=1,
                trace_steps=0,
                options=("min_size=64", "max_size=64") if strategy == "matmul" else (),
            ),
            ranks,
            node,
        )
        for ranks, strategies in CASES.items()
        for strategy in strategies
    ]


def _round(cases: Sequence[Case], folder: Path, ours: Side, theirs: Side) -> None:
    """Run all cases once on each side, in turn."""
    here = machine.read()
    before_s = _cpu_s()
    begun_s = time.monotonic()
    with LocalEngine(folder / "ours") as engine:
        engine.machine()
        ours.beside_s += time.monotonic() - begun_s
        for number, case in enumerate(cases):
            for is_ours in (True, False) if number % 2 else (False, True):
                if is_ours:
                    _run_ours(engine, case, here, folder / "ours", ours)
                else:
                    _run_torchrun(case, folder / f"torchrun{number}", theirs)
        begun_s = time.monotonic()
    ours.beside_s += time.monotonic() - begun_s
    ours.cpu_s = _cpu_s() - before_s - theirs.cpu_s  # The agent's is known only now that it has ended.
    ours.end_round()
    theirs.end_round()


def _cpu_s() -> float:
    """Return the CPU time of all processes that this one and its children have waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run_ours(engine: LocalEngine, case: Case, here: machine.Machine, runs: Path, side: Side) -> None:
    begun_ns = time.time_ns()
    run = begin(case, here, runs)
    ended = engine.run(TrialOrder(run=run.id, trial=0, case=case, limit_s=LIMIT_S), lambda progress: None)
    wall_s = (time.time_ns() - begun_ns) / 1e9
    if ended.outcome != "done":
        sys.exit(f"{case.strategy} on {case.ranks}: {ended.cause.text if ended.cause else ended.outcome}")
    side.add_case(wall_s, _start_s(run.folder, case, begun_ns))
    run.close()


def _run_torchrun(case: Case, folder: Path, side: Side) -> None:
    file = folder.with_suffix(".json")
    file.write_bytes(msgspec.json.encode([{"case": case}]))
    before_s = _cpu_s()
    begun_ns = time.time_ns()
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(case.ranks)),
            *("-m", "bench.session.torchrun", str(file), "--folder", str(folder)),
        ],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(case.threads)},
    )
    wall_s = (time.time_ns() - begun_ns) / 1e9
    if done.returncode:
        sys.exit(f"{case.strategy} on {case.ranks} under torchrun: {done.stderr[-2000:]}")
    side.cpu_s += _cpu_s() - before_s
    side.add_case(wall_s, _start_s(folder, case, begun_ns))


def _start_s(folder: Path, case: Case, begun_ns: int) -> float:
    """Return the seconds until the case's last rank began its log."""
    opened_ns = [
        record.time_ns
        for rank in range(case.ranks)
        for record in read(folder / f"rank{rank}.jsonl").records
        if isinstance(record, Opened)
    ]
    assert len(opened_ns) == case.ranks, "each rank has begun once"
    return (max(opened_ns) - begun_ns) / 1e9


def report(cases: Sequence[Case], ours: Sequence[Cost], theirs: Sequence[Cost]) -> str:
    """Return lines with both totals, their ratio, and what the starts cost."""
    return "\n".join(
        [
            f"{len(cases)} cases of {min(case.ranks for case in cases)} to {max(case.ranks for case in cases)} ranks,"
            f" {sum(case.ranks for case in cases)} ranks in all, {len(ours)} rounds in turn:",
            _line("wall", [cost.wall_s for cost in ours], [cost.wall_s for cost in theirs], PROMISE),
            _line("CPU", [cost.cpu_s for cost in ours], [cost.cpu_s for cost in theirs], None),
            _cases_line("a case alone", [cost.cases_s for cost in ours], [cost.cases_s for cost in theirs]),
            _cases_line("its start", [cost.starts_s for cost in ours], [cost.starts_s for cost in theirs]),
            f"  ours includes the start and end of its agent; {_per_ranks(cases, ours, theirs)}",
        ]
    )


def _line(name: str, ours_s: Sequence[float], theirs_s: Sequence[float], promise: float | None) -> str:
    found = ratio(estimate(RUN_STEP_SECONDS, theirs_s), estimate(RUN_STEP_SECONDS, ours_s))
    text = f"  {name}: {median(ours_s):.3g} s, torchrun's {median(theirs_s):.4g}: 1/{found.value:.1f}"
    if found.low is None or found.high is None:
        return f"{text} ({found.why_no_interval})"
    text += f" [{found.low:.1f}, {found.high:.1f}]"
    if promise is not None:
        verdict = "kept" if found.low >= promise else "broken" if found.high < promise else "unsure"
        text += f"; the promise of 1/{promise:g} is {verdict}"
    return text


def _cases_line(name: str, ours_s: Sequence[Sequence[float]], theirs_s: Sequence[Sequence[float]]) -> str:
    """Compare case by case, each by its median over the rounds; the interval is over the cases."""
    ours, theirs = ([median(rounds) for rounds in zip(*side, strict=True)] for side in (ours_s, theirs_s))
    found = estimate(RUN_STEP_SECONDS, [their_s / our_s for our_s, their_s in zip(ours, theirs, strict=True)])
    interval = "" if found.low is None else f" [{found.low:.1f}, {found.high:.1f}]"
    return f"  {name}: {median(ours):.3g} s, torchrun's {median(theirs):.4g}: 1/{found.median:.1f}{interval}"


def _per_ranks(cases: Sequence[Case], ours: Sequence[Cost], theirs: Sequence[Cost]) -> str:
    """Return what the start of a case costs both sides, by its number of ranks."""
    parts = []
    for ranks in sorted({case.ranks for case in cases}):
        chosen = [number for number, case in enumerate(cases) if case.ranks == ranks]
        starts = [median(cost.starts_s[number] for cost in costs for number in chosen) for costs in (ours, theirs)]
        parts.append(f"{starts[0]:.2f} and {starts[1]:.2f} s on {ranks}")
    return f"a case's ranks have begun after {', '.join(parts)}"


if __name__ == "__main__":
    main()
