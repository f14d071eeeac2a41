"""Predictions of eight strategies in a network in a box, scored: bytes, communication alone, steps, and their order.

Each box is a machine of its own: `matmul`, `copies` and `collectives` measure it, and one case of each strategy. Then
two other cases of each are predicted from this history, as `observatory predict` does, and run, by
`bench.session.torchrun`. Computing sleeps. Tables in Markdown, as docs/measured/links_by_level.md shows them. It needs
Linux, root and iproute2.

    python -m tests.benchmarks.strategies.scored_in_box [--nodes N ...] [--rate MBIT ...] [--replays N]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec

from bench.analysis.prediction.from_history import Place
from bench.analysis.prediction.scoring.before_run import predict_run
from bench.analysis.prediction.scoring.score import score_history
from bench.analysis.prediction.scoring.score_report import score_page
from bench.case import Case
from bench.machine import machine
from bench.report.table import write
from bench.results.estimate import of_metric
from bench.store.history import History
from bench.store.links import find_links
from bench.store.run_dir import load, machine_of
from bench.store.summary import StoredPrediction, Summary
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_probe
from tests.benchmarks.strategies.scored_cases import (
    PRODUCTS,
    Replay,
    Scored,
    Together,
    block_sleeps_s,
    calibrating,
    grouped,
    predicted_cases,
    together,
    words_of,
)
from tests.benchmarks.strategies.sleeping_runs import SleepingOrder, SleepingRun
from tests.slow.ranks.boxed_ranks import ROOT
from tests.slow.ranks.levels_in_box import (
    ACROSS,
    CALLS_INSIDE,
    INSIDE,
    LATENCY,
    RANKS_PER_NODE,
    InBox,
    Setting,
    replay,
)
from tests.support.netbox import INTERFACE, NetBox, netbox
from workloads.cost_models.absent import Absent
from workloads.spec import OptionValue

LIMIT = 0.15
COLLECTIVES = "all_reduce,all_gather,reduce_scatter,all_to_all,send"
MATMUL: Mapping[str, OptionValue] = {"min_size": 128, "max_size": 256}
COPIES: Mapping[str, OptionValue] = {"size_bytes": 1 << 25}
CALLS_ACROSS = 4
PROBE_RUNS = 3
WAIT_S = 120.0
WITHIN_S = 1500.0
_ports = count(29700)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", type=float, nargs="+", default=[200, 100])
    parser.add_argument("--replays", type=int, default=5)
    arguments = parser.parse_args()
    scored: list[Scored] = []
    with (
        tempfile.TemporaryDirectory(prefix="scored-") as folder,
        History(f"sqlite:///{folder}/history.sqlite") as history,
    ):
        for nodes in arguments.nodes:
            for rate in arguments.rate:
                setting, own = Setting(nodes=nodes, rate_mbit=rate), Path(folder, f"{nodes}-{rate:g}")
                of_box = measure(setting, history, own, replays=arguments.replays)
                print_cases(of_box)
                scored += of_box
        print_together("strategy", grouped(scored, "strategy"), scored)
        print_together("box", grouped(scored, "box"), scored)
        print("`observatory predict --score`:\n")
        write("table", score_page(score_history(history)), dict, (), ())
    print(f"\non {machine.read().hardware('cpu')}; load of the last 15 minutes {os.getloadavg()[2]:.0f}")


# Measuring a box


def measure(setting: Setting, history: History, folder: Path, *, replays: int) -> list[Scored]:
    """Calibrate a box, predict its cases, and run them.

    history: of all boxes; each is a machine with a name of its own. folder: a new one.

    Raises:
        RuntimeError: a rank failed, or the history gives no link or step.
    """
    folder.mkdir()
    words = f"{setting.nodes} nodes, {setting.rate_mbit:g} Mbit/s"
    cases = predicted_cases(setting.nodes)
    with netbox(nodes=setting.nodes, rate_mbit=setting.rate_mbit, latency=LATENCY) as box:
        for run in run_cases(box, [*_probes(setting), *calibrating(setting.nodes)], folder):
            _keep(run, words, None, history)
        _say(f"{words}: calibrated")
        predictions = [predict_run(case, words, history) for case in cases]  # All before the first is run.
        steps = []
        for run, prediction in zip(run_cases(box, cases, folder), predictions, strict=True):
            steps.append(_keep(run, words, prediction, history))
        _say(f"{words}: run")
        on_links = []
        for case in cases:
            links = find_links(Place(case=case, hardware=words), history)
            if isinstance(links, Absent):
                raise RuntimeError(links.reason)
            on_links.append((case, links))
        measured = replay(box, on_links, folder, steps=0, replays=replays, turns=replays, sleep_s=0.0, limit_s=WITHIN_S)
        _say(f"{words}: replayed")
    return [_scored(words, summary, one) for summary, one in zip(steps, measured, strict=True)]


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _probes(setting: Setting) -> Iterator[Case]:
    """What the product asks to be measured for a prediction: products, copies, and links of both levels."""
    for _ in range(PROBE_RUNS):
        for name, options in (("matmul", MATMUL), ("copies", COPIES)):
            probe = make_probe(name, setting.ranks, nodes=setting.nodes, trials=1, steps=5, warm_up=1)
            yield replace(probe, options={**probe.options, **options})
    probe = make_probe("collectives", trials=1, warm_up=2)
    swept = {"collectives": COLLECTIVES}
    inside = {**probe.options, **INSIDE, **swept}
    yield replace(probe, ranks=RANKS_PER_NODE, steps=CALLS_INSIDE, options=inside)
    across = {**probe.options, **ACROSS, **swept}
    yield replace(probe, ranks=setting.ranks, nodes=setting.nodes, steps=CALLS_ACROSS, options=across)


def run_cases(box: NetBox, cases: Sequence[Case], folder: Path) -> list[Path]:
    """Run the cases in turn on the first nodes of the box; return the runs' folders.

    Raises:
        RuntimeError: a rank failed.
    """
    runs, folders = [], []
    for case in cases:
        port = next(_ports)
        file = folder / f"{port}.json"
        file.write_bytes(msgspec.json.encode([{"case": case}]))
        folders.append(folder / f"{case.strategy}-{port}")
        forward_s, backward_s = (0.0, 0.0) if case.model is None else block_sleeps_s(case)
        runs.append(
            SleepingRun(
                case=str(file),
                folder=str(folders[-1]),
                ranks=case.ranks,
                port=port,
                forward_s=forward_s,
                backward_s=backward_s,
            )
        )
    order = folder / f"order-{next(_ports)}.json"
    order.write_bytes(
        msgspec.json.encode(
            SleepingOrder(
                address=box.nodes[0].address,
                interface=INTERFACE,
                ranks_per_node=RANKS_PER_NODE,
                products=PRODUCTS,
                limit_s=WAIT_S,
                runs=runs,
            )
        )
    )
    processes = []
    for rank in range(RANKS_PER_NODE * len(box.nodes)):
        command = [sys.executable, "-m", "tests.benchmarks.strategies.sleeping_runs", str(order), str(rank)]
        with order.with_suffix(f".{rank}.log").open("wb") as log:
            processes.append(box.run_in(rank // RANKS_PER_NODE, command, cwd=ROOT, stdout=log, stderr=log))
    codes = [process.wait(timeout=WITHIN_S) for process in processes]
    if any(codes):
        logs = [order.with_suffix(f".{rank}.log").read_text()[-2000:] for rank in range(len(codes)) if codes[rank]]
        raise RuntimeError(f"ranks ended with codes {codes}:\n" + "\n".join(logs))
    return folders


def _keep(run: Path, words: str, prediction: StoredPrediction | None, history: History) -> Summary:
    """Store the run as one of the box; return its summary.

    Raises:
        RuntimeError: it is not whole, or has no predicted step.
    """
    summary = replace(load(run), hardware=words, prediction=prediction)
    if summary.outcome != "done":
        raise RuntimeError(f"{run}: {summary.outcome}, {summary.cause}")
    if prediction is not None and prediction.step_s is None:
        raise RuntimeError(f"{run}: {prediction.absent}")
    history.add(summary, machine_of(run))
    return summary


def _scored(words: str, summary: Summary, one: InBox) -> Scored:
    assert summary.prediction is not None, "it was kept with one"
    assert summary.prediction.step_s is not None, "it was kept with one"
    expected, counted = one.predicted_bytes(), one.counted_bytes()
    replays = (
        Replay(
            axis=axis,
            level="cluster" if one.is_across(axis) else "node",
            predicted_s=one.predicted_replay_s(axis),
            measured_s=tuple(one.replays_s(axis)),
        )
        for axis in one.replayed
    )
    (step, *_) = of_metric(summary.estimates, RUN_STEP_SECONDS)
    return Scored(
        box=words,
        case=one.case,
        predicted_bytes=sum(expected.values()),
        counted_bytes=sum(counted.values()),
        are_bytes_equal=expected == counted,
        replays=tuple(replays),
        predicted_s=summary.prediction.step_s,
        measured_s=step.median,
    )


# Tables


def print_cases(scored: Sequence[Scored]) -> None:
    """A row for each case."""
    print(f"**{scored[0].box}**\n")
    print("| strategy | options | a rank's bytes | alone / predicted | step predicted | measured | error |")
    print("|---|---|---|---|---|---|---|")
    for each in scored:
        print(f"| {' | '.join(case_cells(each))} |")
    print(flush=True)


def case_cells(each: Scored) -> Iterator[str]:
    """The cells of a case's row."""
    yield f"`{each.case.strategy}`"
    yield words_of(each.case)
    counted = "" if each.are_bytes_equal else f", counted {each.counted_bytes:,}"
    yield f"{each.predicted_bytes:,}{counted}"
    yield ", ".join(f"{one.axis} {one.ratio:.2f}{' (node)' if one.level == 'node' else ''}" for one in each.replays)
    yield f"{each.predicted_s:.2f} s"
    yield f"{each.measured_s:.2f} s"
    yield f"{100 * each.error:+.0f} %"


def print_together(by: str, groups: Mapping[str, Sequence[Scored]], scored: Sequence[Scored]) -> None:
    """A row for each group, and one for all cases."""
    print(f"| {by} | cases | bytes exact | alone within {100 * LIMIT:.0f} %, across nodes | error of the step | tau |")
    print("|---|---|---|---|---|---|")
    for name, cases in (*groups.items(), ("all", scored)):
        title = f"`{name}`" if by == "strategy" and name != "all" else name
        print(f"| {' | '.join((title, *together_cells(together(cases, limit=LIMIT))))} |")
    print(flush=True)


def together_cells(cases: Together) -> Iterator[str]:
    """The cells of a group's row, after its name."""
    yield str(cases.cases)
    yield f"{cases.equal_bytes} of {cases.cases}"
    yield f"{cases.within} of {cases.replays}"
    yield f"{100 * cases.error.median:+.0f} % [{100 * cases.error.low:+.0f}, {100 * cases.error.high:+.0f}]"
    yield cases.tau.reason if isinstance(cases.tau, Absent) else f"{cases.tau:.2f}"


if __name__ == "__main__":
    main()
