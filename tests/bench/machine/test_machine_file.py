"""Machine files: the shipped ones, names with a number of nodes, a user's own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import Misuse
from bench.machine.machines.machine_file import SHIPPED, PlannedMachine, read_machine, shipped_machines
from bench.results.mfu import Peak, peak_of
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import Link
from workloads.cost_models.interconnect import NetworkLevel

NAMES = ("a100-40x8", "a100-80x8", "b200x8", "gb200x4", "h100x8", "h200x8", "mi300x8")


def test_these_machines_are_shipped_where_the_wheel_has_them() -> None:
    assert tuple(shipped_machines()) == NAMES
    assert Path(__file__).parents[3] / "bench" / "machine" / "machines" / "shipped" == SHIPPED


@pytest.mark.parametrize("name", NAMES)
def test_each_names_data_sheets_and_takes_its_peaks_from_the_table_of_them(name: str) -> None:
    machine = read_machine(name)
    table = machine.table
    assert name.endswith(f"x{table.gpus_per_node}")
    assert "data sheet" in table.levels[0].source
    assert table.peak_flops_per_second is None
    assert isinstance(machine.peak("bf16"), Peak)
    assert machine.peak("bf16") == peak_of(table.gpu.name, "bf16")
    assert [level.gpus for level in table.levels][-1] is None
    assert table.host_memory_source
    assert table.gpu.memory_source


def test_a_name_with_one_more_number_has_so_many_nodes() -> None:
    machine = read_machine("a100-80x8x64")
    assert (machine.table.nodes, machine.gpus) == (64, 512)
    assert read_machine("a100-80x8").gpus == 8
    assert machine.words == "64 nodes of 8 x NVIDIA A100-SXM4-80GB"


def test_links_of_two_nodes_are_those_of_the_data_sheet() -> None:
    inner, outer = read_machine("h100x8x2").interconnect(16, 2).levels
    assert inner == NetworkLevel(name="NVLink", ranks=8, link=Link(bandwidth_bytes_per_second=450e9, latency_s=1.9e-6))
    # A node's link is that of its eight cards.
    assert outer == NetworkLevel(
        name="InfiniBand", ranks=16, link=Link(bandwidth_bytes_per_second=400e9, latency_s=4e-6)
    )


def test_a_level_that_no_rank_crosses_is_left_out() -> None:
    assert [level.name for level in read_machine("h100x8x2").interconnect(8, 1).levels] == ["NVLink"]


def test_a_domain_may_hold_several_nodes_and_part_of_the_last() -> None:
    levels = read_machine("gb200x4x20").interconnect(80, 20).levels
    assert [(level.name, level.ranks) for level in levels] == [("NVLink", 72), ("InfiniBand", 144)]


def test_ranks_that_leave_gpus_free_share_nodes_evenly() -> None:
    levels = read_machine("h100x8x2").interconnect(12, 2).levels
    assert [(level.name, level.ranks) for level in levels] == [("NVLink", 6), ("InfiniBand", 12)]


def test_an_efficiency_lowers_every_bandwidth() -> None:
    links = [level.link for level in read_machine("h100x8x2").interconnect(16, 2, efficiency=0.5).levels]
    assert [link.bandwidth_bytes_per_second for link in links if isinstance(link, Link)] == [225e9, 200e9]


# A user's file.

OWN = """
schema_version = 1
description = "two nodes of four"
gpus_per_node = 4
nodes = 2
host_memory_bytes = 500_000_000_000
host_memory_source = "the vendor's quote"
[gpu]
name = "NVIDIA A100 80GB PCIe"
memory_bytes = 84_900_000_000
memory_source = "torch"
[[levels]]
name = "PCIe"
gpus = 4
bandwidth_bytes_per_second = 32e9
latency_s = 5e-6
source = "PCIe 4.0 x16"
[[levels]]
name = "Ethernet"
bandwidth_bytes_per_second = 3.125e9
latency_s = 2e-5
source = "100 Gbit/s, shared by four GPUs"
"""
UNKNOWN = OWN.replace("NVIDIA A100 80GB PCIe", "ACME 9")
PEAKS = '[peak_flops_per_second]\nsource = "ACME 9 data sheet"\nbf16 = 400e12\n'


def _own(folder: Path, text: str) -> PlannedMachine:
    path = folder / "own.toml"
    path.write_text(text)
    return read_machine(str(path))


def test_a_file_of_ones_own_works_as_a_shipped_one(tmp_path: Path) -> None:
    machine = _own(tmp_path, OWN)
    assert (machine.gpus, machine.table.nodes) == (8, 2)
    assert machine.peak("bf16") == peak_of("NVIDIA A100 80GB PCIe", "bf16")
    assert [level.ranks for level in machine.interconnect(8, 2).levels] == [4, 8]


def test_a_gpu_without_a_known_data_sheet_brings_its_own(tmp_path: Path) -> None:
    peak, missing = (_own(tmp_path, UNKNOWN + PEAKS).peak(precision) for precision in ("bf16", "fp32"))
    assert isinstance(peak, Peak)
    assert (peak.flops_per_second, peak.source) == (400e12, "ACME 9 data sheet")
    assert isinstance(missing, Absent)
    assert "add peak_flops_per_second.fp32 from its data sheet" in missing.reason


WRONG = {
    "no memory": (OWN.replace("84_900_000_000", "0"), "gpu.memory_bytes is 0; it may be a whole number of at least"),
    "gigabytes": (OWN.replace("84_900_000_000", "80"), "gpu.memory_bytes is 80; it may be a whole number of at least"),
    "no links": (OWN.partition("[[levels]]")[0], "missing key 'levels'; add it"),
    "no outer level": (
        OWN.rpartition("[[levels]]")[0],
        'levels: "PCIe" joins 4 GPUs, and nothing joins more; add a last [[levels]] without gpus',
    ),
    "no size": (OWN.replace("gpus = 4\n", ""), 'levels[0]: "PCIe" has no gpus, and only the last level joins all'),
    "odd size": (OWN.replace("gpus = 4\n", "gpus = 3\n"), 'levels: "PCIe" joins 3 GPUs, and a node has 4'),
    "no bandwidth": (
        OWN.replace("32e9", "0"),
        "levels[0].bandwidth_bytes_per_second is 0; it may be a number of at least 1,000",
    ),
    "no limit": (OWN.replace("32e9", "inf"), "levels[0].bandwidth_bytes_per_second is Infinity; it may be a number"),
    "a slow message": (OWN.replace("5e-6", "inf"), "levels[0].latency_s is Infinity; it may be a number of at least 0"),
    "no inner level": (
        OWN.partition("[[levels]]")[0] + "[[levels]]" + OWN.rpartition("[[levels]]")[2],
        'levels: no level before "Ethernet" joins the 4 GPUs of a node; add a [[levels]] with gpus = 4',
    ),
    "a narrow inner level": (OWN.replace("gpus = 4\n", "gpus = 2\n"), 'no level before "Ethernet" joins the 4 GPUs'),
    "a level of one": (OWN.replace("gpus = 4\n", "gpus = 1\n"), "levels[0].gpus is 1; it may be a whole number of at"),
    "no peak": (UNKNOWN, 'gpu.name is "ACME 9", for which this program has no data sheet; add [peak_flops_per_second]'),
    "an empty peak": (UNKNOWN + '[peak_flops_per_second]\nsource = "x"', "peak_flops_per_second has no rate; add fp32"),
    "a sparse peak": (
        OWN + '[peak_flops_per_second]\nsource = "x"\nbf16 = 624e12',
        "peak_flops_per_second.bf16 is 6.24e+14, and no data sheet gives that: NVIDIA A100 data sheet, 2021 gives"
        " 3.12e+14 dense; leave the table out",
    ),
    "a memory ten times as fast": (
        OWN.replace('"torch"', '"torch"\nmemory_bandwidth_bytes_per_second = 1.935e13'),
        "gpu.memory_bandwidth_bytes_per_second is 1.935e+13, and no data sheet gives that: NVIDIA A100 data sheet, 2021"
        " gives 1.935e+12; leave it out",
    ),
    "two levels of one name": (
        OWN.replace('"Ethernet"', '"PCIe"'),
        'levels[1]: "PCIe" is also levels[0]; give each level its own name',
    ),
    "no source": (OWN.replace('"PCIe 4.0 x16"', '""'), 'levels[0].source is ""; it may be a text that is not empty'),
    "a typing error": (OWN.replace("nodes = 2", "node = 2"), "unknown key 'node'; did you mean 'nodes'?"),
    "a newer file": (OWN.replace("schema_version = 1", "schema_version = 2"), "schema_version is 2, and this program"),
}


def test_a_memory_bandwidth_that_rounds_the_data_sheet_is_taken(tmp_path: Path) -> None:
    machine = _own(tmp_path, OWN.replace('"torch"', '"torch"\nmemory_bandwidth_bytes_per_second = 1.94e12'))
    assert machine.memory_bandwidth() == 1.94e12


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text, line = WRONG[name]
    with pytest.raises(Misuse) as refused:
        _own(tmp_path, text)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("h100", 'machine "h100" is unknown; did you mean "h100x8"?; --on takes a100-40x8, a100-80x8, b200x8,'),
        ("h100x4", 'machine "h100x4" is unknown; did you mean "h100x8"?'),
        ("nothing", 'machine "nothing" is unknown; --on takes'),
        ("h100x8x0", "--on h100x8x0 has 0 nodes; it may have 1 to 4,096, for example h100x8x8"),
        ("h100x8x99999999999999", "it may have 1 to 4,096"),
        ("none.toml", "none.toml: No such file or directory; name a TOML file"),
    ],
)
def test_an_unknown_machine_is_refused_with_what_it_may_be(name: str, line: str) -> None:
    with pytest.raises(Misuse) as refused:
        read_machine(name)
    assert line in str(refused.value)


def test_more_ranks_than_gpus_are_refused_with_a_machine_that_has_them() -> None:
    machine = read_machine("h100x8x8")
    assert machine.too_few(64) is None
    assert machine.too_few(65) == "ranks is 65, and h100x8x8 has 64 GPUs; use --ranks 64 or fewer, or --on h100x8x9"


def test_a_file_of_ones_own_with_too_few_gpus_is_named(tmp_path: Path) -> None:
    machine = _own(tmp_path, OWN)
    assert str(machine.too_few(9)).endswith(f"use --ranks 8 or fewer, or nodes = 3 in {machine.file}")


def test_a_file_with_the_name_of_a_shipped_machine_stays_a_file(tmp_path: Path) -> None:
    path = tmp_path / "h100x8.toml"
    path.write_text(OWN)
    machine = read_machine(str(path))
    assert machine.with_nodes(4).words_to_choose == f"nodes = 4 in {path}"
    assert read_machine("h100x8").with_nodes(4).words_to_choose == "--on h100x8x4"
