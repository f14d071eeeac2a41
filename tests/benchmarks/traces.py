"""Reading and dividing traces: ours beside HolisticTraceAnalysis 0.5.0, in turn, each in fresh processes.

Each reads the same files as kineto writes them, and says how much was computed and communicated and how much of that at
once. First one rank, with the scanner in C and by Python alone; then eight ranks on all cores. A command's cost is that
of all its processes, imports included; of one rank also that of the work alone, which begins after the imports. Ours
must find what is known to be in the files, to the nanosecond.

With --growth ours alone reads a trace of so many events, and one of ten times as many: an event more should take no
more memory beside its columns than in them.

    python -m tests.benchmarks.traces [--events N] [--rounds N] [--growth]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from bench.results.estimate import estimate, ratio
from collectors.metrics.metric import Metric
from collectors.metrics.results import RUN_PEAK_MEMORY_BYTES, RUN_STEP_SECONDS
from collectors.traces.reading.decoders import IS_BUILT
from tests.benchmarks.trace_parts import hta
from tests.benchmarks.trace_parts.metered import Cost, metered
from tests.benchmarks.trace_parts.trace_files import Truth, write

RANKS = 8
CPU_PROMISE, MEMORY_PROMISE = 10.0, 3.0
GROWTH = 10


class _Rank(msgspec.Struct, frozen=True, kw_only=True):
    compute_ns: int
    communication_ns: int
    overlap_ns: int


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `traces_script` says. imported_bytes, read_bytes: its highest mark of memory before and after reading."""

    ranks: list[_Rank]
    cpu_s: float
    imported_bytes: int
    read_bytes: int
    columns_bytes: int


@dataclass(kw_only=True)
class _Side:
    """One of those compared, and what its rounds took."""

    name: str
    command: Sequence[str]
    costs: list[Cost] = field(default_factory=list)

    def run(self) -> None:
        self.costs.append(metered(self.command))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--growth", action="store_true")
    arguments = parser.parse_args()
    if not IS_BUILT:
        print("the scanner in C was not built: ours is Python alone", flush=True)
    with tempfile.TemporaryDirectory() as name:
        if arguments.growth:
            _grow(Path(name), arguments.events, arguments.rounds)
        else:
            _one_rank(Path(name), arguments.events, arguments.rounds)
            _all_ranks(Path(name), arguments.events, arguments.rounds)


def _one_rank(folder: Path, events: int, rounds: int) -> None:
    path = folder / "rank0.json"
    truth = write(path, events=events, ranks=RANKS)
    theirs = _Side(name="HTA", command=hta.command([path]))
    ours = _Side(name="ours", command=_our_command(str(path)))
    python = _Side(name="ours by Python alone", command=_our_command("--python-alone", str(path)))
    _take_turns((theirs, ours, python), rounds)
    print(f"one rank of {truth.events:,} events, {truth.size_bytes / 1e6:.0f} MB, {rounds} rounds in turn:")
    for side in (ours, python):
        answers = [_checked(cost, [truth]) for cost in side.costs]
        their_answers = [msgspec.json.decode(cost.output, type=hta.Answer) for cost in theirs.costs]
        _report(side, theirs)
        _line(
            f"{side.name}, the work alone: CPU",
            "s",
            RUN_STEP_SECONDS,
            [answer.cpu_s for answer in their_answers],
            [answer.cpu_s for answer in answers],
            CPU_PROMISE,
        )


def _all_ranks(folder: Path, events: int, rounds: int) -> None:
    paths = [folder / f"rank{rank}.json" for rank in range(RANKS)]
    truths = [write(path, events=events, rank=rank, ranks=RANKS) for rank, path in enumerate(paths)]
    theirs = _Side(name="HTA", command=hta.command(paths))
    ours = _Side(name="ours", command=_our_command(*map(str, paths)))
    _take_turns((theirs, ours), rounds)
    for cost in ours.costs:
        _checked(cost, truths)
    print(f"{RANKS} ranks of {truths[0].events:,} events each on all cores, {rounds} rounds in turn:")
    _report(ours, theirs)


def _grow(folder: Path, events: int, rounds: int) -> None:
    sides, truths = [], []
    for count in (events, GROWTH * events):
        path = folder / f"{count}.json"
        truths.append(write(path, events=count))
        sides.append(_Side(name=f"{count:,} events", command=_our_command(str(path))))
    _take_turns(sides, rounds)
    few, many = ([_checked(cost, [truth]) for cost in side.costs] for side, truth in zip(sides, truths, strict=True))
    for side, answers in zip(sides, (few, many), strict=True):
        print(
            f"{side.name}: {median(answer.cpu_s for answer in answers):.3f} s CPU; columns of"
            f" {answers[0].columns_bytes / 1e6:.0f} MB, while reading {_beside_bytes(answers) / 1e6:.0f} MB beside them"
        )
    found = ratio(
        estimate(RUN_STEP_SECONDS, [answer.cpu_s for answer in many]),
        estimate(RUN_STEP_SECONDS, [answer.cpu_s for answer in few]),
    )
    more = truths[1].events - truths[0].events
    columns_bytes = (many[0].columns_bytes - few[0].columns_bytes) / more
    beside_bytes = (_beside_bytes(many) - _beside_bytes(few)) / more
    print(
        f"{truths[1].events / truths[0].events:.2f} times the events cost {found.value:.2f}"
        f"{_interval(found.low, found.high)} times the CPU time; an event more takes"
        f" {columns_bytes:.0f} bytes of columns and {beside_bytes:.0f} beside them, of its text's"
        f" {truths[1].size_bytes / truths[1].events:.0f}; the promise of no more beside them than in them is"
        f" {'kept' if beside_bytes <= columns_bytes else 'broken'}"
    )


def _beside_bytes(answers: Sequence[_Answer]) -> float:
    """The most memory while reading, without what the columns take in the end."""
    return median(answer.read_bytes - answer.imported_bytes - answer.columns_bytes for answer in answers)


def _our_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.benchmarks.trace_parts.traces_script", *arguments]


def _take_turns(sides: Sequence[_Side], rounds: int) -> None:
    for _ in range(rounds):
        for side in sides:
            side.run()


def _checked(cost: Cost, truths: Sequence[Truth]) -> _Answer:
    """What ours answered, which must be true."""
    answer = msgspec.json.decode(cost.output, type=_Answer)
    said = [(rank.compute_ns, rank.communication_ns, rank.overlap_ns) for rank in answer.ranks]
    true = [(truth.compute_ns, truth.communication_ns, truth.overlap_ns) for truth in truths]
    if said != true:
        sys.exit(f"ours says {said}, where the files hold {true}")
    return answer


def _report(side: _Side, theirs: _Side) -> None:
    _line(f"{side.name}: CPU", "s", RUN_STEP_SECONDS, *_both(side, theirs, "cpu_s"), CPU_PROMISE)
    _line(f"{side.name}: wall", "s", RUN_STEP_SECONDS, *_both(side, theirs, "wall_s"), None)
    _line(f"{side.name}: memory", "MB", RUN_PEAK_MEMORY_BYTES, *_both(side, theirs, "peak_bytes"), MEMORY_PROMISE)


def _both(side: _Side, theirs: _Side, what: str) -> tuple[list[float], list[float]]:
    return [getattr(cost, what) for cost in theirs.costs], [getattr(cost, what) for cost in side.costs]


def _line(
    name: str, unit: str, metric: Metric, theirs: Sequence[float], ours: Sequence[float], promise: float | None
) -> None:
    labels = {"account": "resident"} if metric is RUN_PEAK_MEMORY_BYTES else {}
    found = ratio(estimate(metric, theirs, **labels), estimate(metric, ours, **labels))
    scale = 1e-6 if unit == "MB" else 1.0
    text = f"  {name} {scale * median(ours):.3g} {unit}, HTA's {scale * median(theirs):.4g}: 1/{found.value:.1f}"
    text += _interval(found.low, found.high)
    if promise is not None and found.low is not None and found.high is not None:
        verdict = "kept" if found.low >= promise else "broken" if found.high < promise else "unsure"
        text += f"; the promise of 1/{promise:g} is {verdict}"
    print(text, flush=True)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    main()
