"""Runs apache-otava on the judged series, in an environment of its own, since it pins numpy.

Not called otava.py: the worker beside it would import it instead of the package.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.benchmarks.gate.judged_series import Alerts, JudgedSeries

VERSION = "0.8.0"
WORKER = Path(__file__).with_name("otava_worker.py")
Answers = dict[str, dict[str, tuple[Alerts, int]]]
"""Of each series and variant the alerts, and how many nights were run again."""
VARIANTS = {"alone": "Otava", "rerun": "Otava + rerun", "rerun_hold": "Otava + rerun + hold"}


def make_environment(folder: Path) -> Path:
    """Return the Python of an environment with Otava, made in this folder unless it is there."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"apache-otava=={VERSION}"], check=True)
    return python


def run(seeds: Mapping[int, Sequence[JudgedSeries]], python: Path, folder: Path, processes: int) -> Answers:
    """Return of each series and variant Otava's alerts, and how many nights it had run again.

    folder: keeps what Otava was given and what it answered, a file of each for each seed. An answer that is there and
    was given to the very same series, by the same version and settings, is taken as it is, so that a run can go on.
    """
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}

    def answer(seed: int) -> Answers:
        source, target = folder / f"seed{seed}.in.jsonl", folder / f"seed{seed}.out.jsonl"
        lines = [
            json.dumps({"name": one.name, "values": one.values, "reruns": one.reruns}) + "\n" for one in seeds[seed]
        ]
        source.write_text("".join(lines))
        subprocess.run([python, WORKER, source, target], check=True, env=environment)
        answers = [json.loads(line) for line in target.read_text().splitlines()[1:]]
        return {
            one["name"]: {
                variant: (found["alerts"], found["nights_rerun"]) for variant, found in one["variants"].items()
            }
            for one in answers
        }

    folder.mkdir(parents=True, exist_ok=True)
    found: Answers = {}
    with ThreadPoolExecutor(processes) as pool:
        for answers in pool.map(answer, seeds):
            found.update(answers)
    return found
