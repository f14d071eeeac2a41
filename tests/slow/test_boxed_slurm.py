"""Suites on a real Slurm whose nodes have slow links: bandwidth, weak scaling and a straggler are what was made so.

Each node is a network of its own in a box, capped at 200 Mbit/s, with a slurmd inside; Slurm's controller, the runner
and a Prometheus are in a further one. Ranks sleep in place of computing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.case import Case
from bench.errors import FINE, INFRASTRUCTURE
from tests.slow.clusters.slurm import Slurm, run_slurm
from tests.slow.clusters.slurm_nights import SlurmNight
from tests.support.netbox import INTERFACE, RESOLVERS, NetBox, netbox
from tests.support.servers import PrometheusServer, run_prometheus
from workloads.cost_models.communication import Link, bus_factor
from workloads.cost_models.interconnect import one_level
from workloads.cost_models.step_time import ComputeTime, step_time

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.alone, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
NODES = 4
RATE_MBIT = 200
CAP_BYTES_PER_SECOND = RATE_MBIT * 1e6 / 8
LEAST_SHARE = 0.90  # Headers take 5 % of the link.
HEADERS_RATIO = 0.05
TOLERANCE_RATIO = 0.15
SIZE_BYTES = 2**24
"""So large that the waits between the rounds of four nodes, which share two cores here, are small beside them."""
CALLS = 1 + 8 + 1
"""To warm up, timed, and the one whose result is checked."""
EXPORTER_PORT = 9464
SLEEP_S = 0.012
SLOW_S = 0.09
SLOW_NODE = 2
SLOW_RATE_RATIO = 0.25

# A block is 1 MiB of matrices and two small norms, so that a bucket of 1 MiB ends where a block ends.
HEAD = """
schema_version = 1
[defaults]
device = "cpu"
ranks = 4
trials = 2
steps = 5
warm_up = 2
trace_steps = 0
width = 256
heads = 2
kv_heads = 1
mlp_width = 86
vocabulary = 8
sequence = 2
"""
SUITE = f"""{HEAD}layers = 8
[case.collectives]
ranks = [2, 4]
trials = 1
steps = 8
warm_up = 1
options = {{ collectives = "all_reduce", min_bytes = {SIZE_BYTES}, max_bytes = {SIZE_BYTES} }}
[case.single]
ranks = 1
batch = 1
[case.ddp]
ranks = [2, 4]
baseline = "single"
scaling = "weak"
block = "ddp"
options = {{ bucket_mb = 1 }}
"""
STRAGGLING = f"""{HEAD}layers = 2
batch = 4
[case.ddp]
trials = 4
steps = 2
warm_up = 1
trace_steps = 3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxed:
    """A Slurm with slow links, and the Prometheus that scrapes its nodes; this thread is in the controller's network.

    names: what look-ups find. targets: the exporters of the nodes.
    """

    box: NetBox
    slurm: Slurm
    prometheus: PrometheusServer
    names: Path
    targets: tuple[str, ...]

    def night(self, folder: Path, suite: str, setup: str = "") -> SlurmNight:
        """A home whose agents have sleepy ranks. setup: lines of a shell on each node."""
        night = SlurmNight(folder, self.slurm, suite)
        python = folder / "python"
        python.write_text(
            f"""#!/bin/sh
shift 3  # The words that name the agent's own module.
# In the box, look-ups of names would wait for a server that is not there.
exec unshare --mount --uts sh -c 'mount --bind {self.names}/hosts /etc/hosts &&
    mount --bind {self.names}/resolv.conf /etc/resolv.conf && hostname "node$((SLURM_NODEID + 1))" && exec "$0" "$@"' \\
    {sys.executable} -m tests.slow.ranks.sleepy_agent "$@"
"""
        )
        python.chmod(0o755)
        night.write_settings(
            f"time = \"20\"\npython = \"{python}\"\nexporter = \"0.0.0.0:{EXPORTER_PORT}\"\nsetup = '''{setup}'''\n"
            f'environment = {{ PYTHONPATH = "{ROOT}", OBSERVATORY_TEST_SLEEP_S = "{SLEEP_S}" }}\n'
        )
        return night


@pytest.fixture(scope="module")
def boxed() -> Iterator[Boxed]:
    """Four nodes, and the one of the controller."""
    with ExitStack() as stack:
        box = stack.enter_context(netbox(nodes=NODES + 1, rate_mbit=RATE_MBIT))
        stack.enter_context(box.inside(0))
        slurm = stack.enter_context(run_slurm(NODES, box))
        targets = tuple(f"{node.address}:{EXPORTER_PORT}" for node in box.nodes[1:])
        prometheus = stack.enter_context(run_prometheus(*targets))
        names = RESOLVERS / box.nodes[0].namespace
        yield Boxed(box=box, slurm=slurm, prometheus=prometheus, names=names, targets=targets)


@pytest.fixture(scope="module")
def cases(boxed: Boxed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summaries of the suite's cases."""
    night = boxed.night(tmp_path_factory.mktemp("home"), SUITE)
    code, cases, messages = night.run(f"--nodes={NODES}")
    assert code == FINE, messages
    return {name: case["summary"] for name, case in cases.items()}


def _median(summary: dict[str, Any], metric: str, **labels: str) -> float:
    (found,) = (
        one["median"]
        for one in summary["estimates"]
        if one["metric"] == metric and labels.items() <= one["labels"].items()
    )
    return float(found)


def _elapsed_s(cases: dict[str, Any], ranks: int) -> float:
    return _median(cases[f"collectives[ranks={ranks}]"], "observatory_run_collective_seconds", collective="all_reduce")


def _bus_bandwidth(cases: dict[str, Any], ranks: int) -> float:
    return _median(
        cases[f"collectives[ranks={ranks}]"], "observatory_run_collective_bus_bytes_per_second", collective="all_reduce"
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_bus_bandwidth_over_nodes_is_the_links_less_headers(ranks: int, cases: dict[str, Any]) -> None:
    assert cases[f"collectives[ranks={ranks}]"]["case"]["nodes"] == ranks
    assert LEAST_SHARE <= _bus_bandwidth(cases, ranks) / CAP_BYTES_PER_SECOND <= 1


def test_each_nodes_exporter_shows_prometheus_the_same_bandwidth(boxed: Boxed, cases: dict[str, Any]) -> None:
    """Bandwidth times time are the bytes that leave a node; two of the nodes took part in both cases."""
    sent = f'observatory_host_network_bytes_total{{interface="{INTERFACE}",direction="sent"}}'
    begun_s = min(cases[f"collectives[ranks={ranks}]"]["started_ns"] for ranks in (2, 4)) / 1e9
    before, after = (
        {one["metric"]["instance"]: float(one["value"][1]) for one in boxed.prometheus.query(f"{sent} @ {at_s:.3f}")}
        for at_s in (begun_s, cases["single"]["ended_ns"] / 1e9)
    )
    for node, target in enumerate(boxed.targets):
        expected_bytes = sum(
            CALLS * _bus_bandwidth(cases, ranks) * _elapsed_s(cases, ranks) for ranks in (2, 4) if node < ranks
        )
        counted_bytes = after[target] - before.get(target, 0.0)
        assert expected_bytes <= counted_bytes <= expected_bytes * (1 + HEADERS_RATIO)


@pytest.mark.parametrize("ranks", [2, 4])
def test_weak_scaling_falls_as_predicted(ranks: int, cases: dict[str, Any]) -> None:
    """By what one rank alone computes, and by the link that the probe found."""
    single, ddp = cases["single"], cases[f"ddp[ranks={ranks}]"]
    case = msgspec.convert(ddp["case"], Case)
    [transfer] = case.spec().transfers(case)
    alone = ComputeTime(
        **{
            f"{phase}_s": _median(single, "observatory_run_phase_seconds", phase=phase)
            for phase in ("forward", "backward", "optimizer")
        }
    )
    sent_bytes = SIZE_BYTES * float(bus_factor("all_reduce", ranks))
    link = Link(bandwidth_bytes_per_second=sent_bytes / _elapsed_s(cases, ranks))
    law = step_time(alone, [transfer], axes={"data": ranks}, interconnect=one_level(link, ranks), backend="gloo")
    (scaling,) = ddp["scaling"]
    assert scaling["scaling"] == "weak"
    assert scaling["ratio"]["value"] == pytest.approx(alone.step_s / law.step_s, rel=TOLERANCE_RATIO)
    assert scaling["ratio"]["value"] < 1 - TOLERANCE_RATIO


def test_a_rank_on_a_slower_node_is_named_with_the_node(boxed: Boxed, tmp_path: Path) -> None:
    slower = f'if [ "$SLURM_NODEID" = {SLOW_NODE} ]; then export OBSERVATORY_TEST_SLEEP_S={SLOW_S}; fi'
    code, cases, messages = boxed.night(tmp_path, STRAGGLING, slower).run(f"--nodes={NODES}")
    assert code == FINE, messages
    summary = cases["ddp"]["summary"]
    assert any(
        f"rank {SLOW_NODE} on node{SLOW_NODE} holds the others up by compute" in note for note in summary["notes"]
    )
    (straggler,) = (one for one in summary["estimates"] if one["metric"] == "observatory_run_straggler_ratio")
    assert straggler["labels"]["rank"] == str(SLOW_NODE)


def test_a_node_with_a_slower_link_is_named_by_the_check_with_what_its_pairs_reach(
    boxed: Boxed, tmp_path: Path
) -> None:
    """Nodes here have names and links of their own, but share their cores: what is said of products is of chance."""
    node = boxed.box.nodes[1 + SLOW_NODE]
    night = boxed.night(tmp_path, SUITE)
    words = ["doctor", "--engine=slurm", f"--nodes={NODES}", f"--engine-file={night.engine_file}", "--format=json"]
    node.set_rate(SLOW_RATE_RATIO * RATE_MBIT)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "bench", *words],
            env=night.environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    finally:
        node.set_rate(RATE_MBIT)
    assert done.returncode == INFRASTRUCTURE, done.stderr
    fleet = json.loads(done.stdout)
    of_links = [one for one in fleet["findings"] if "network" in one["text"] or "between" in one["text"]]
    assert [one["node"] for one in of_links] == [SLOW_NODE], of_links
    told = re.fullmatch(
        r"its network: ([\d.]+) MB/s with node1 and ([\d.]+) MB/s with node3; other pairs reach ([\d.]+) MB/s",
        of_links[0]["text"],
    )
    assert told, of_links
    one, other, usual = (float(rate) / (CAP_BYTES_PER_SECOND / 1e6) for rate in told.groups())
    # After a pause, a quarter of a call's 1 MiB passes unslowed.
    assert max(one, other) <= SLOW_RATE_RATIO / (1 - 0.25)
    assert usual > max(one, other)
