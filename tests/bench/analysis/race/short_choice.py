"""The measured part of `observatory choose` with trials of one step: `short_choice.py FOLDER SHAPE STRATEGY ...`.

SHAPE: dimensions in JSON. Prints the result as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from bench.analysis.race.race import RaceCase
from bench.cli.planning.measured_choice import RaceOptions, measure
from bench.session.case_args import CaseArgs


def main() -> int:
    """Race the strategies on two ranks of the CPU; return the exit code."""
    folder, shape, *strategies = sys.argv[1:]
    args = CaseArgs(
        strategy="ddp", ranks=(2,), dimensions=json.loads(shape), device="cpu", steps=1, warm_up=0, trace_steps=0
    )
    cases = [RaceCase(name=name, args=replace(args, strategy=name)) for name in strategies]
    options = RaceOptions(
        objective="throughput",
        budget_s=3600.0,
        limit_s=600.0,
        resumed=None,
        runs_folder=Path(folder, "runs"),
        store_url=f"sqlite:///{folder}/history.sqlite",
        format_name="json",
        quiet=False,
    )
    return measure(cases, options)


if __name__ == "__main__":
    sys.exit(main())
