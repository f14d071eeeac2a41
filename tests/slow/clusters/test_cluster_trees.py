"""Pairs of commits on the nodes of a real Slurm and a real Ray: trees are sent, run in turn, and removed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from bench.session.checkouts import SOURCE
from tests.bench.made.planted_trees import PlantedTrees, plant
from tests.slow.clusters.nights import Night, defaults, wait, words_of
from tests.slow.clusters.pair_of_commits import PAIRS
from tests.slow.clusters.ray_cluster import RayNight, run_ray
from tests.slow.clusters.slurm import run_slurm
from tests.slow.clusters.slurm_nights import SlurmNight

NODES = 2
SLEEP_S = 0.3
SUITE = f"{defaults(trials=1)}[case.ddp]\nranks = 2\n"


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> PlantedTrees:
    """A good commit, and one whose steps sleep."""
    return plant(tmp_path_factory.mktemp("trees") / "repository", 2, {1: SLEEP_S})


@pytest.fixture
def slurm_night(short_path: Path) -> Iterator[SlurmNight]:
    """A Slurm of two nodes."""
    with run_slurm(NODES) as slurm:
        yield SlurmNight(short_path, slurm, SUITE)
        wait(lambda: not slurm.jobs())


@pytest.fixture
def ray_night(short_path: Path) -> Iterator[RayNight]:
    """A Ray of two nodes."""
    with run_ray(NODES) as cluster:
        yield RayNight(short_path, cluster.address, SUITE)


def _measured(night: Night, trees: PlantedTrees) -> list[dict[str, Any]]:
    """Measure both commits; return both sides."""
    words = [night.engine, str(night.engine_file), str(NODES), str(trees.folder), *trees.commits, str(night.folder)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.slow.clusters.pair_of_commits", *words],
        env=night.environment,
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sides: list[dict[str, Any]] = json.loads(done.stdout)
    return sides


def _check(night: Night, trees: PlantedTrees) -> None:
    good, bad = _measured(night, trees)
    assert [good["commit"], bad["commit"]] == list(trees.commits)
    assert [good["outcome"], bad["outcome"]] == ["done", "done"]
    assert len(good["trials"]) == len(bad["trials"]) == PAIRS
    assert median(bad["trials"]) > median(good["trials"])
    assert all(any(note.startswith("ranks were 0-1 on ") for note in side["notes"]) for side in (good, bad))
    wait(lambda: not _agents(night))
    assert list(night.nodes.glob("observatory-tree-*")) == []


def _agents(night: Night) -> list[psutil.Process]:
    names = {"bench.engines.node.agent", "bench.engines.node.tree_agents"}
    return [process for process in night.processes() if names & set(words_of(process))]


@pytest.mark.slow
@pytest.mark.stack
@pytest.mark.timeout(400)
def test_slurm_runs_both_trees_on_the_same_nodes(slurm_night: SlurmNight, trees: PlantedTrees) -> None:
    _check(slurm_night, trees)


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_ray_runs_both_trees_on_the_same_nodes(ray_night: RayNight, trees: PlantedTrees) -> None:
    _check(ray_night, trees)
