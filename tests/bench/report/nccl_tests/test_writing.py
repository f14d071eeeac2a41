"""Runs of ours in nccl-tests' form."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from bench.errors import Misuse
from bench.machine.gpus import Gpu
from bench.report.nccl_tests.reader import decode
from bench.report.nccl_tests.writer import encode
from bench.results.estimate import Estimate, estimate
from bench.store.summary import Summary
from collectors.metrics import probes as probes_metrics
from tests.bench.made.examples import make_case, make_machine, make_summary
from workloads.cost_models.communication import bus_factor

TRIALS_S = (0.002, 0.0021, 0.0022)


def _figures(collective: Any, size: int, ranks: int = 4, algorithm: str = "library") -> list[Estimate]:
    labels = {"collective": collective, "algorithm": algorithm, "size": str(size)}
    found = [
        estimate(probes_metrics.RUN_COLLECTIVE_SECONDS, TRIALS_S, **labels),
        estimate(probes_metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH, [size / time for time in TRIALS_S], **labels),
    ]
    busses = [size / time * float(bus_factor(collective, ranks)) for time in TRIALS_S]
    return found if not busses[0] else [*found, estimate(probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, busses, **labels)]


def _summary(*figures: list[Estimate], ranks: int = 4, **case: Any) -> Summary:
    return make_summary(
        case=replace(make_case(ranks=ranks), model=None, **case), estimates=tuple(chain(*figures)), scaling=()
    )


def _document(summary: Summary, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(encode(summary, make_machine())[name])
    return document


def test_what_we_write_is_read_back_with_our_figures() -> None:
    summary = _summary(_figures("all_reduce", 4096), _figures("all_reduce", 8192), precision="bf16")
    imported = decode(encode(summary, make_machine())["all_reduce_perf.json"], "x.json")
    assert (imported.collective, imported.ranks, imported.dtypes) == ("all_reduce", 4, ("bf16",))
    assert (imported.hosts, imported.devices) == (("node0",), ("AMD EPYC, 2 cores",))
    assert [row.size_bytes for row in imported.rows] == [4096, 8192]
    placement = imported.rows[0].in_place
    assert placement is not None
    assert placement.elapsed_s == pytest.approx(0.0021)
    assert placement.algorithm_bytes_per_second == pytest.approx(4096 / 0.0021)
    assert placement.bus_bytes_per_second == pytest.approx(1.5 * 4096 / 0.0021)


def test_each_collective_and_algorithm_has_a_file_of_its_own() -> None:
    summary = _summary(
        _figures("all_reduce", 4096), _figures("all_reduce", 4096, algorithm="ring"), _figures("all_to_all", 4096)
    )
    files = encode(summary)
    assert list(files) == ["all_reduce_perf.json", "all_reduce_perf.ring.json", "alltoall_perf.json"]
    assert [len(json.loads(data)["results"]) for data in files.values()] == [1, 1, 1]


def test_an_algorithm_is_named_within_its_file_and_whoever_reads_it_is_told() -> None:
    files = encode(_summary(_figures("all_reduce", 4096), _figures("all_reduce", 4096, algorithm="ring")))
    library, ring = (files[name] for name in ("all_reduce_perf.json", "all_reduce_perf.ring.json"))
    assert json.loads(ring)["args"] == ["observatory/all_reduce_perf", "--algorithm=ring"]
    assert decode(ring, "x.json").notes == ("it used the algorithm ring, not the library's own",)
    assert decode(library, "x.json").notes == ()


@pytest.mark.parametrize(
    ("collective", "name", "placed", "absent"),
    [
        ("all_reduce", "all_reduce_perf.json", "in_place", "out_of_place"),
        ("all_gather", "all_gather_perf.json", "out_of_place", "in_place"),
    ],
)
def test_the_placement_that_torch_does_not_run_is_null(collective: str, name: str, placed: str, absent: str) -> None:
    (row,) = _document(_summary(_figures(collective, 4096)), name)["results"]
    assert row[placed]["time"] == pytest.approx(2100)
    assert row[absent] is None


@pytest.mark.parametrize(
    ("collective", "name", "count", "redop", "root"),
    [
        ("all_reduce", "all_reduce_perf.json", 1024, "sum", "    -1"),
        ("all_gather", "all_gather_perf.json", 256, "none", "    -1"),
        ("reduce_scatter", "reduce_scatter_perf.json", 256, "sum", "    -1"),
        ("broadcast", "broadcast_perf.json", 1024, "none", "     0"),
        ("send", "sendrecv_perf.json", 1024, "none", "    -1"),
    ],
)
def test_a_row_counts_elements_as_nccl_tests_does(
    collective: str, name: str, count: int, redop: str, root: str
) -> None:
    (row,) = _document(_summary(_figures(collective, 4096)), name)["results"]
    assert (row["count"], row["redop"], row["root"], row["type"]) == (count, redop, root, "float")


@pytest.mark.parametrize(
    ("sizes", "step"),
    [
        ((1024, 4096, 16384), {"step_factor": 4}),
        ((1024, 2048, 3072), {"step_bytes": 1024}),
        ((1024, 2048, 2052), {}),
        ((1024,), {}),
    ],
)
def test_sizes_come_in_order_with_their_step(sizes: tuple[int, ...], step: dict[str, int]) -> None:
    summary = _summary(*(_figures("all_reduce", size) for size in reversed(sizes)))
    document = _document(summary, "all_reduce_perf.json")
    assert [row["size"] for row in document["results"]] == list(sizes)
    config = document["config"]
    assert (config["minimum_bytes"], config["maximum_bytes"]) == (sizes[0], sizes[-1])
    assert {name: config[name] for name in ("step_factor", "step_bytes") if name in config} == step


def test_a_figure_says_that_its_result_was_checked_and_its_bandwidth_was_not() -> None:
    document = _document(_summary(_figures("all_reduce", 4096)), "all_reduce_perf.json")
    assert document["config"]["validation"] == 1
    assert document["results"][0]["in_place"]["nwrong"] == 0
    assert document["average_bus_bandwidth"]["okay"] == "unchecked"


def test_the_average_is_over_all_sizes() -> None:
    document = _document(_summary(_figures("broadcast", 4096), _figures("broadcast", 8192)), "broadcast_perf.json")
    assert document["average_bus_bandwidth"]["bandwidth"] == pytest.approx(6144 / 0.0021 / 1e9)


@pytest.mark.parametrize(("collective", "factor"), [("all_reduce", 0), ("broadcast", 1)])
def test_one_rank_has_the_bus_bandwidth_of_the_formula_as_in_nccl_tests(collective: str, factor: int) -> None:
    times_and_algbw = _figures(collective, 4096, ranks=1)[:2]
    (row,) = _document(_summary(times_and_algbw, ranks=1), f"{collective}_perf.json")["results"]
    assert row["in_place"]["bus_bw"] == factor * row["in_place"]["alg_bw"]


def test_gpus_are_named_and_nccl_has_its_code() -> None:
    gpus = tuple(Gpu(index=index, name="NVIDIA H200", uuid=f"GPU-{index}", memory_bytes=None) for index in (2, 3))
    machine = replace(make_machine(), gpus=gpus, nccl_version="2.28.9")
    summary = _summary(_figures("all_reduce", 4096, ranks=2), ranks=2, device="cuda", backend="nccl")
    document = json.loads(encode(summary, machine)["all_reduce_perf.json"])
    assert document["nccl_version"] == 22809
    assert [(device["device"], device["device_info"]) for device in document["config"]["devices"]] == [
        (2, "NVIDIA H200"),
        (3, "NVIDIA H200"),
    ]


def test_gloo_has_no_nccl_version() -> None:
    machine = replace(make_machine(), nccl_version="2.28.9")
    document = json.loads(encode(_summary(_figures("all_reduce", 4096)), machine)["all_reduce_perf.json"])
    assert document["nccl_version"] is None


def test_a_run_without_collectives_is_refused() -> None:
    with pytest.raises(Misuse, match="run run-a measured ddp, not a collective; `observatory run collectives`"):
        encode(make_summary())
