"""The ratio of our step rate to that of the plainest torch script of the same strategy, with its 95 % interval.

Trials of both take turns. Both train the same model on the same data, made by one loader process a rank. Ours is the
run as users have it: clock, log and supervisor included; the script reads the clock once a step. Ranks of both lead
sessions of their own. A strategy's script in `scripts/` bears its name, but for those that share one (`SHARED`).

    python -m tests.benchmarks.plain [STRATEGY ...] [--trials N] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.case import Case
from bench.engines.local import LocalEngine
from bench.rank.messages import TrialOrder
from bench.results.estimate import estimate, ratio
from bench.results.trials import read_trials
from collectors.metrics.results import RUN_STEP_SECONDS
from workloads.cost_models.shape import PRESETS
from workloads.registry import spec_of

SCRIPTS = Path(__file__).parent / "scripts"
SHARED = {
    "data_parallel": ("ddp", "zero1", "zero2", "fsdp", "hsdp"),
    "pipelines": ("pipeline_naive", "gpipe", "one_f_one_b", "interleaved", "zero_bubble"),
}
"""Scripts of several strategies."""
PROMISE = 0.99
WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", default=sorted(plain_scripts()))
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    for strategy in arguments.strategies:
        print(compare(benchmark_case(strategy, arguments.steps), arguments.trials), flush=True)


def plain_scripts() -> dict[str, Path]:
    """Return the script of each strategy."""
    return {strategy: path for path in SCRIPTS.glob("*.py") for strategy in SHARED.get(path.stem, (path.stem,))}


def compare(case: Case, trials: int) -> str:
    """Measure both in turn; a line that says who is faster, and whether that is sure."""
    ours, plain = [], []
    for trial in range(trials):
        ours.append(_our_step_s(case, trial))
        plain.append(_plain_step_s(case))
    found = ratio(estimate(RUN_STEP_SECONDS, plain), estimate(RUN_STEP_SECONDS, ours))
    if found.low is None or found.high is None:
        return f"{case.strategy}: {found.value:.3f} x the plain script's step rate ({found.why_no_interval})"
    verdict = "kept" if found.low >= PROMISE else "broken" if found.high < PROMISE else "unsure"
    return (
        f"{case.strategy} on {case.ranks}: {found.value:.3f} [{found.low:.3f}, {found.high:.3f}] x the plain script's"
        f" step rate; steps of {1e3 * median(ours):.1f} and {1e3 * median(plain):.1f} ms, {trials} trials of"
        f" {case.steps} steps each; the promise of {PROMISE} is {verdict}"
    )


def benchmark_case(strategy: str, steps: int) -> Case:
    """The strategy in a shape whose step takes some 200 ms on one core."""
    spec = spec_of(strategy)
    needs = spec.needs
    ranks = max(2, needs.minimum_ranks) if needs.maximum_ranks is None else min(2, needs.maximum_ranks)
    return Case(
        strategy=strategy,
        version=spec.version,
        ranks=ranks,
        model=replace(PRESETS["tiny"], batch=16 * ranks),
        device="cpu",
        backend="gloo",
        precision="fp32",
        threads=1,
        trials=1,
        steps=steps,
        warm_up=WARM_UP,
        trace_steps=0,
        seed=0,
        options={option.name: option.default for option in spec.options},
    )


def _our_step_s(case: Case, trial: int) -> float:
    """An agent of its own for each trial: all ranks of an agent share the memory layout of its forkserver, which alone
    moves their steps by a percent, as it does those of a fresh script."""
    with tempfile.TemporaryDirectory() as folder, LocalEngine(Path(folder)) as engine:
        engine.machine()
        (Path(folder) / "plain").mkdir()
        order = TrialOrder(run="plain", trial=trial, case=case, limit_s=600)
        ended = engine.run(order, lambda _: None)
        if ended.outcome != "done":
            sys.exit(f"{case.strategy}: {ended.cause.text if ended.cause else ended.outcome}")
        (measured,) = read_trials(Path(folder) / "plain", case.ranks).trials
    return measured.step_s


def _plain_step_s(case: Case) -> float:
    settings = json.dumps(
        {
            "strategy": case.strategy,
            "shape": asdict(case.shape),
            "threads": case.threads,
            "steps": case.steps,
            "warm_up": case.warm_up,
        }
    )
    script = plain_scripts()[case.strategy]
    printed = run_script(script, settings, ranks=case.ranks, threads=case.threads)
    ends: list[float] = json.loads(printed.strip().splitlines()[-1])[case.warm_up :]
    return median(end - start for start, end in pairwise(ends))


def run_script(script: Path, settings: str, *, ranks: int, threads: int) -> str:
    """What a script printed whose ranks each lead a session of their own, as ours do.

    Linux's autogroup gives each session its share of busy cores, however many processes it has: a script in the session
    of whoever calls it would have 1.2 to 2 times less than a rank of ours. torchrun starts its ranks in such sessions.
    """
    command = [sys.executable, "-P"]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [*command, str(script), settings],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=ranks == 1,  # torchrun stays here, so that Ctrl-C reaches it.
        # Without a safe path a script would import itself by the name of the library that it is named after.
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONSAFEPATH": "1"},
    ).stdout


if __name__ == "__main__":
    main()
