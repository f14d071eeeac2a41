"""How many of our files three journeys enter: a file counts when one of its functions is called,
other than while modules are imported.

    .venv/bin/python -m tests.benchmarks.journeys [--names]

- first step: from the command line of `observatory run` to the first step of a rank, in all processes of the run;
- step time: the same, and on to the table on the screen and the page /metrics;
- trace: from a trace's file to the table of `observatory analyse collectives`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.made.small_traces import write_kineto

ROOT = Path(__file__).parents[2]
PACKAGES = ("bench", "collectors", "workloads", "dashboards")
TRACER = """
import atexit, os, sys, time
first = {}
def is_import(frame):
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1:  # A function, and no body of a module or class.
        name = code.co_filename
        if name not in first and not is_import(frame):
            first[name] = time.monotonic_ns()
            with open(os.path.join(os.environ["JOURNEY"], str(os.getpid())), "a") as file:
                file.write(f"{first[name]} {name}\\n")
        if name.endswith("workloads/core/trainer.py") and code.co_name == "step" and "step" not in first:
            first["step"] = time.monotonic_ns()
            with open(os.path.join(os.environ["JOURNEY"], "step"), "a") as file:
                file.write(f"{first['step']}\\n")
sys.setprofile(note)
"""
"""Loaded by each Python that starts, as sitecustomize; a forked rank goes on with a copy of `first`."""


def entered(command: list[str], *, until_first_step: bool = False) -> set[str]:
    """The files of ours that the command's processes enter, relative to the root."""
    with tempfile.TemporaryDirectory() as folder:
        hooks, journey = Path(folder, "hooks"), Path(folder, "journey")
        hooks.mkdir()
        journey.mkdir()
        (hooks / "sitecustomize.py").write_text(TRACER)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{hooks}:{ROOT}",
            "JOURNEY": str(journey),
            "XDG_DATA_HOME": folder,
            "CUDA_VISIBLE_DEVICES": "",
        }
        subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        steps = journey / "step"
        end_ns = min(map(int, steps.read_text().split())) if until_first_step else None
        found = set()
        for log in journey.glob("[0-9]*"):
            for line in log.read_text().splitlines():
                at_ns, name = line.split(" ", 1)
                path = Path(name)
                is_ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES
                if is_ours and (end_ns is None or int(at_ns) <= end_ns):
                    found.add(str(path.relative_to(ROOT)))
        return found


def main() -> None:
    """Print the three counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print the files, too")
    arguments = parser.parse_args()
    ours = [sys.executable, "-m", "bench"]
    run = [*ours, "run", "ddp", "--device=cpu", "--ranks=2", "--trials=1", "--steps=2", "--warm-up=1", "--port=0"]
    with tempfile.TemporaryDirectory() as folder:
        for rank in (0, 1):
            write_kineto(Path(folder) / f"rank{rank}.json", rank)
        journeys = {
            "first step": entered(run, until_first_step=True),
            "step time": entered(run),
            "trace": entered([*ours, "analyse", "collectives", folder]),
        }
    for name, files in journeys.items():
        print(f"{name}: {len(files)} files")
        if arguments.names:
            print("\n".join(f"  {file}" for file in sorted(files)))


if __name__ == "__main__":
    main()
