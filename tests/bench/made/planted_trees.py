"""A git history of this program in which one commit makes each training step sleep."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.session.checkouts import PACKAGES, SOURCE

_STEP = "            self._update()\n"
"""The end of a training step, in the trainer that all strategies share but two."""
TRAINER = Path("workloads", "core", "trainer.py")
REGISTRY = Path("workloads", "registry.py")


def git(folder: Path, *words: str) -> str:
    """Call git without the user's settings; return what it prints."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "gc.auto=0")
    ended = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True, env=environment
    )
    return ended.stdout.strip()


@dataclass(frozen=True)
class PlantedTrees:
    """A repository with commits of this program, oldest first."""

    folder: Path
    commits: tuple[str, ...]


def plant(
    folder: Path, count: int, sleeps_s: Mapping[int, float], *, broken: frozenset[int] = frozenset()
) -> PlantedTrees:
    """Make a repository of so many commits; each touches a file that is run.

    sleeps_s: by the number of the commit, how long each step sleeps from then on. broken: numbers of commits that
    cannot be imported.
    """
    folder.mkdir(parents=True)
    for package in PACKAGES:
        shutil.copytree(SOURCE / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    git(folder, "init", "--quiet")
    trainer = folder / TRAINER
    original = trainer.read_text()
    assert original.count(_STEP) == 1
    commits = []
    sleep_s = 0.0
    for number in range(count):
        sleep_s = sleeps_s.get(number, sleep_s)
        planted = f"{_STEP}            __import__('time').sleep({sleep_s!r})\n" if sleep_s else _STEP
        trainer.write_text(f"{original.replace(_STEP, planted)}# {number}\n")
        registry = (SOURCE / REGISTRY).read_text()
        (folder / REGISTRY).write_text(f"{registry}import no_such_module\n" if number in broken else registry)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", f"--message=commit {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return PlantedTrees(folder=folder, commits=tuple(commits))
