"""`observatory stack status` of a real Prometheus: targets of ours that are down, beside those of others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from bench.cli import main
from bench.serve.own_process import own_process
from bench.serve.server import page_of
from collectors.prometheus.http_server import Server, pages
from tests.support.servers import free_port, run_prometheus
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]


def _node() -> Server:
    """What shows nothing but what all of ours show: the program that answers."""
    return Server(pages(page_of((own_process(),), on_notice=print)), "127.0.0.1", 0, on_notice=print)


@pytest.fixture
def results() -> Iterator[Server]:
    with closing(_node()) as server:
        yield server


def _job(*ports: int) -> dict[str, object]:
    return {"static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}


def test_nodes_that_are_all_down_are_missed_and_jobs_of_others_are_named(
    results: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [_node(), _node()]
    jobs = {
        "gpu-nodes": _job(*(node.port for node in nodes)),
        "results": _job(results.port),
        "node_exporter": _job(free_port()),
    }
    with run_prometheus(jobs=jobs) as prometheus:
        wait_until(lambda: len(prometheus.query("up == 1")) == 3)
        for node in nodes:
            node.close()
        wait_until(lambda: len(prometheus.query("observatory_build_info")) == 1)
        assert main.run(["stack", "status", "--prometheus", prometheus.url, "--format", "json"]) == 4
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert {row["target"]: (row["job"], row["health"]) for row in document["targets"]} == {
        f"127.0.0.1:{results.port}": ("results", "up"),
        **{f"127.0.0.1:{node.port}": ("gpu-nodes", "down") for node in nodes},
    }
    left_out, *missing = said.err.splitlines()
    assert left_out == "left out: job node_exporter (1 target, 1 down); nothing of ours answered there within a day"
    assert len(missing) == len(document["problems"]) == 2
    assert all(" (job gpu-nodes) is missing: " in line for line in missing)
