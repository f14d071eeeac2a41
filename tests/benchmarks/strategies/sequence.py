"""Ring attention, plain and zigzag, beside Ulysses: speed and memory of a rank, and what hides behind attention.

Two tables of speed: the sequence grows with the ranks, or stays as it is. Trials of all cases of a table take turns.
Work is the pairs of query and key of one head of one sequence that a rank computes in forward, by the laws that tests
hold against what the code computes; of Ulysses, whose ranks have some heads whole, the mean over all heads. Then a
table of activations against the sequence. All in Markdown, as docs/measured/sequences.md shows them.

    python -m tests.benchmarks.strategies.sequence [--trials N] [--steps N] [--device cpu|cuda] [--shape NAME]
        [--batch N] [--sequence N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.case import Case
from bench.engines.local import LocalEngine
from bench.report.format import figure
from bench.session.case_args import CaseArgs, case_of_args, read_node
from bench.session.measure import TrialSettings, alike, measure
from bench.session.persist import persist
from bench.store.history import History
from bench.store.summary import Summary
from collectors.metrics import results
from collectors.metrics.metric import Metric
from workloads.context_parallel import cost_model as context_parallel
from workloads.context_parallel.cost_model import PositionLayout

RANKS = (1, 2, 4)
HEADS = {"heads": 8, "kv_heads": 4}
"""Grouped, and divisible by all of these ranks."""
WAYS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("ring_attention", {"layout": "plain"}),
    ("ring_attention", {"layout": "zigzag"}),
    ("ring_attention", {"layout": "zigzag", "overlap": "false"}),
    ("ulysses", {}),
)
DIVIDED = (("single", 1), ("ring_attention", 2), ("ring_attention", 4), ("ulysses", 2), ("ulysses", 4))
"""The columns of the table of activations."""
ACTIVATIONS = {"part": "activations", "account": "measured"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What all cases have alike. sequence: that of one rank."""

    device: str
    shape: str
    batch: int
    sequence: int
    trials: int
    steps: int

    def case(self, strategy: str, options: Mapping[str, str], *, ranks: int, sequence: int) -> Case:
        """A case that is measured for its speed and traced."""
        args = CaseArgs(
            strategy=strategy,
            shape_name=self.shape,
            dimensions={**HEADS, "batch": self.batch, "sequence": sequence},
            device="cuda" if self.device == "cuda" else "cpu",
            trials=self.trials,
            steps=self.steps,
            warm_up=3,
            options=[f"{name}={value}" for name, value in options.items()],
        )
        return case_of_args(args, ranks, read_node())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", default="tiny")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    size = Size(**vars(parser.parse_args()))
    longest = size.sequence * max(RANKS)
    print(f"{size.sequence} positions on each rank\n")
    _print_speeds(_measure(list(_speeds(size, grown=True))))
    print(f"\n{longest} positions on all ranks\n")
    summaries = _measure(list(_speeds(size, grown=False)))
    _print_speeds(summaries)
    print("\nactivations\n")
    _print_activations(size, [longest // 4, longest // 2, longest, 2 * longest])
    print(f"\non {summaries[0].hardware}; torch {summaries[0].torch_version}, commit {summaries[0].commit}")


def _speeds(size: Size, *, grown: bool) -> Iterator[Case]:
    """Each way on each number of ranks. grown: the sequence is as many times that of one rank."""
    for strategy, options in WAYS:
        for ranks in RANKS:
            sequence = size.sequence * (ranks if grown else max(RANKS))
            yield size.case(strategy, options, ranks=ranks, sequence=sequence)


def _print_speeds(summaries: Sequence[Summary]) -> None:
    print("| strategy | ranks | sequence | work: least, most | tokens/s of a rank | hidden, of all | of the ring |")
    print("|---|---|---|---|---|---|---|")
    for summary in summaries:
        case = summary.case
        speed = _figure(summary, results.RUN_TOKENS_PER_SECOND_PER_DEVICE)
        # A rank that is alone averages its gradients with nobody, and the trace shows that too.
        hidden = "-" if case.ranks == 1 else _figure(summary, results.RUN_OVERLAP_RATIO)
        ring = "-" if case.ranks == 1 else _figure(summary, results.RUN_COLLECTIVE_OVERLAP_RATIO, collective="send")
        cells = (_name(case), case.ranks, case.shape.sequence, _work(case), speed, hidden, ring)
        print(f"| {' | '.join(map(str, cells))} |")


def _print_activations(size: Size, sequences: Sequence[int]) -> None:
    cases = [
        replace(size.case(strategy, {}, ranks=ranks, sequence=sequence), trials=1, steps=1, trace_steps=0)
        for sequence in sequences
        for strategy, ranks in DIVIDED
    ]
    cells = iter([_figure(one, results.RUN_MEMORY_ACCOUNT_BYTES, **ACTIVATIONS) for one in _measure(cases)])
    print(f"| sequence | {' | '.join(f'`{strategy}` on {ranks}' for strategy, ranks in DIVIDED)} |")
    print(f"|---|{'---|' * len(DIVIDED)}")
    for sequence in sequences:
        print(f"| {sequence} | {' | '.join(next(cells) for _ in DIVIDED)} |", flush=True)


def _measure(cases: Sequence[Case]) -> tuple[Summary, ...]:
    with (
        tempfile.TemporaryDirectory() as folder,
        History(f"sqlite:///{folder}/history.sqlite") as history,
        LocalEngine(Path(folder)) as engine,
    ):
        machine = engine.machine()
        measured = measure(
            alike([(case, None) for case in cases], TrialSettings(limit_s=600)),
            engine=engine,
            machine=machine,
            folder=Path(folder),
        )
        measured.close()
        summaries = persist(measured.summaries, machine, history, explicit_baseline=None).summaries
    if any(summary.outcome == "interrupted" for summary in summaries):
        sys.exit(130)
    return summaries


def _name(case: Case) -> str:
    if case.strategy != "ring_attention":
        return f"`{case.strategy}`"
    return f"`{case.strategy}` {case.options['layout']}" + ("" if case.options["overlap"] else ", no overlap")


def _work(case: Case) -> str:
    """The pairs of the ranks that compute least and most."""
    sequence, ranks = case.shape.sequence, case.ranks
    if case.strategy == "ulysses":
        return f"{round(context_parallel.ulysses_pairs(sequence=sequence, ranks=ranks)):,}"
    layout: PositionLayout = "plain" if case.options["layout"] == "plain" else "zigzag"
    by_rank = [
        context_parallel.ring_pairs(layout, is_causal=True, sequence=sequence, rank=rank, ranks=ranks)
        for rank in range(ranks)
    ]
    least, most = min(by_rank), max(by_rank)
    return f"{most:,}" if least == most else f"{least:,}, {most:,}"


def _figure(summary: Summary, metric: Metric, **labels: str) -> str:
    if summary.cause is not None:
        return summary.cause.text
    for found in summary.estimates:
        if found.metric == metric.name and labels.items() <= found.labels.items():
            return figure(found)
    return "-"


if __name__ == "__main__":
    main()
