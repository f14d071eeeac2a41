"""ZeRO's stages side by side, by torch and by DeepSpeed: states, traffic and step time, each beside its cost model.

Trials of all take turns on one shape. A table in Markdown, as docs/measured/examples.md shows it without the predicted
step. This is not the step of `observatory predict`: it adds what the strategy's traffic leaves exposed, on the link
that a sweep of all_reduce measures in between, to what `single` takes with the share of one rank; it knows nothing of
cores that ranks and their communication share.

    python -m tests.benchmarks.strategies.sharded [--ranks N] [--trials N] [--steps N] [--device cpu|cuda]
        [--shape NAME]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.case import Case, one_rank_baseline
from bench.engines.local import LocalEngine
from bench.report.format import figure
from bench.results.probes import link_by
from bench.session.case_args import CaseArgs, case_of_args, read_node
from bench.session.measure import TrialSettings, alike, measure
from bench.session.persist import persist
from bench.store.history import History
from bench.store.summary import Summary
from collectors.metrics import results
from collectors.metrics.metric import Metric
from workloads.cost_models.communication import Link
from workloads.cost_models.interconnect import one_level
from workloads.cost_models.step_time import ComputeTime, step_time

ROWS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("ddp", {}),
    ("zero1", {}),
    ("deepspeed", {"stage": "1"}),
    ("zero2", {}),
    ("deepspeed", {"stage": "2"}),
    ("fsdp", {}),
    ("deepspeed", {"stage": "3"}),
)
STATES = ("parameters", "gradients", "optimizer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", default="tiny")
    arguments = parser.parse_args()
    cases = [_case(strategy, options, arguments) for strategy, options in ROWS]
    alone = one_rank_baseline(cases[0], "weak")
    assert alone is not None, "the batch divides"
    sweep = _case("collectives", {"collectives": "all_reduce"}, arguments)
    with tempfile.TemporaryDirectory() as folder:
        single, swept, *summaries = _measure([alone, sweep, *cases], Path(folder))
    law = _Law(single=single, link=link_by(swept.estimates))
    print(f"| strategy | {' | '.join(STATES)} | traffic, counted / predicted | step | predicted |")
    print("|---|---|---|---|---|---|---|")
    for summary in summaries:
        print(_row(summary, law))
    print()
    print(f"on {single.hardware}; torch {single.torch_version}, commit {single.commit}; {'; '.join(swept.notes)}")


def _case(strategy: str, options: Mapping[str, str], arguments: argparse.Namespace) -> Case:
    args = CaseArgs(
        strategy=strategy,
        shape_name=arguments.shape,
        device=arguments.device,
        trials=arguments.trials,
        steps=arguments.steps,
        options=[f"{name}={value}" for name, value in options.items()],
    )
    return case_of_args(args, arguments.ranks, read_node())


def _measure(cases: list[Case], folder: Path) -> tuple[Summary, ...]:
    with History(f"sqlite:///{folder / 'history.sqlite'}") as history, LocalEngine(folder) as engine:
        machine = engine.machine()
        measured = measure(
            alike([(case, None) for case in cases], TrialSettings(limit_s=600)),
            engine=engine,
            machine=machine,
            folder=folder,
        )
        measured.close()
        return persist(measured.summaries, machine, history, explicit_baseline=None).summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class _Law:
    """What a step's time follows from. link: None where the sweep tells none."""

    single: Summary
    link: Link | None

    def step(self, summary: Summary) -> str:
        """The step that the law expects."""
        if self.link is None:
            return "no link"
        phases_s = {
            found.labels["phase"]: found.median
            for found in self.single.estimates
            if found.metric == results.RUN_PHASE_SECONDS.name
        }
        compute = ComputeTime(
            forward_s=phases_s["forward"],
            backward_s=phases_s["backward"],
            optimizer_s=phases_s["optimizer"] + phases_s["data"],
        )
        case = summary.case
        expected = step_time(
            compute,
            case.spec().transfers(case),
            axes=case.spec().mesh(case),
            interconnect=one_level(self.link, case.ranks),
            backend=case.backend,
        )
        return f"{1e3 * expected.step_s:.1f} ms"


def _row(summary: Summary, law: _Law) -> str:
    """Measured bytes of a rank's states with the law's error, traffic counted over the law's, the median step."""
    stage = summary.case.options.get("stage")
    name = f"`{summary.case.strategy}`" + ("" if stage is None else f" stage {stage}")
    if summary.cause is not None:
        return f"| {name} | {summary.cause.text} | | | | | |"
    cells = [_state(summary, part) for part in STATES]
    step = _figure(summary, results.RUN_STEP_SECONDS)
    return f"| {name} | {' | '.join(cells)} | {_traffic(summary)} | {step} | {law.step(summary)} |"


def _state(summary: Summary, part: str) -> str:
    measured = _figure(summary, results.RUN_MEMORY_ACCOUNT_BYTES, part=part, account="measured")
    for found in summary.estimates:
        if found.metric == results.RUN_MEMORY_PREDICTED_RATIO.name and found.labels["part"] == part:
            return f"{measured}, predicted {100 * (found.median - 1) + 0.0:+.1f} %"
    return measured


def _traffic(summary: Summary) -> str:
    counted, expected = (
        sum(
            found.median
            for found in summary.estimates
            if found.metric == results.RUN_PAYLOAD_BYTES.name and found.labels["account"] == account
        )
        for account in ("counted", "expected")
    )
    return f"{counted / 2**20:.2f} MiB / {expected / 2**20:.2f} MiB"


def _figure(summary: Summary, metric: Metric, **labels: str) -> str:
    for found in summary.estimates:
        if found.metric == metric.name and labels.items() <= found.labels.items():
            return figure(found)
    return "-"


if __name__ == "__main__":
    main()
