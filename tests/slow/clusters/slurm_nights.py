"""A home of a user beside a Slurm on this machine: its suites, and what the engine's file has to say here."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from tests.slow.clusters.nights import CASES, Night, defaults, words_of
from tests.slow.clusters.slurm import Slurm

SETTINGS = f'address = "127.0.0.1"\ntime = "20"\npython = "{sys.executable}"\n'
SUITE = f"""{defaults(trials=2)}{CASES}
[case.killed]
strategy = "ddp"
ranks = 4
trials = 1
inject = "kill@3:2"
expect = {{ outcome = "failed", cause = "killed", rank = 3 }}
[case.hung]
strategy = "ddp"
ranks = 4
trials = 1
seed = 1
limit_s = 25
inject = "hang@2:2"
expect = {{ outcome = "failed", cause = "hung", rank = 2 }}
"""
LONG = f"{defaults(trials=2)}[case.ddp]\nranks = 4\nsteps = 250\n"


class SlurmNight(Night):
    """A night on a Slurm, whose jobs have its environment."""

    def __init__(self, folder: Path, slurm: Slurm, suite: str, settings: str = SETTINGS) -> None:
        super().__init__(folder, "slurm", suite, settings, slurm.environment)
        self.slurm = slurm


def agents_of(slurm: Slurm) -> list[psutil.Process]:
    """The agents of all nights on a Slurm."""
    found = []
    for process in psutil.process_iter():
        if "bench.engines.node.agent" in words_of(process):
            try:
                if process.environ().get("SLURM_CONF") == slurm.environment["SLURM_CONF"]:
                    found.append(process)
            except psutil.Error:
                continue
    return found
