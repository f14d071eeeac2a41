"""What is read of made-up trees of /proc and /sys, and what is said where they are bare."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.machine.doctor.node_state import cpu_clocks, infiniband_ports, interfaces, kernel_settings, numa_nodes
from bench.machine.doctor.page import Entry


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _numa(number: int, cpus: str, kibibytes: int) -> dict[str, str]:
    folder = f"sys/devices/system/node/node{number}"
    return {
        f"{folder}/cpulist": f"{cpus}\n",
        f"{folder}/meminfo": f"Node {number} MemTotal:       {kibibytes} kB\nNode {number} MemFree:        12 kB\n",
    }


def _clock(cpu: int, now_khz: int, governor: str = "performance") -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
    return {
        f"{folder}/scaling_governor": f"{governor}\n",
        f"{folder}/scaling_cur_freq": f"{now_khz}\n",
        f"{folder}/cpuinfo_max_freq": "3500000\n",
    }


def test_numa_nodes_come_in_order_of_their_numbers(tmp_path: Path) -> None:
    files = _numa(10, "24-31", 2048) | _numa(2, "0-23", 1024) | {"sys/devices/system/node/has_cpu": "2,10\n"}
    assert tuple(numa_nodes(_write(tmp_path, files))) == (
        Entry(name="NUMA node 2, CPUs", value="0-23"),
        Entry(name="NUMA node 2, memory", value=1 << 20, unit="bytes"),
        Entry(name="NUMA node 10, CPUs", value="24-31"),
        Entry(name="NUMA node 10, memory", value=2 << 20, unit="bytes"),
    )


def test_a_numa_node_of_memory_alone_has_no_cpus(tmp_path: Path) -> None:
    assert next(numa_nodes(_write(tmp_path, _numa(1, "", 1024)))) == Entry(name="NUMA node 1, CPUs", value="none")


def test_clocks_are_of_the_slowest_and_the_fastest_cpu(tmp_path: Path) -> None:
    assert tuple(cpu_clocks(_write(tmp_path, _clock(0, 800_000) | _clock(11, 3_400_000)))) == (
        Entry(name="CPU governor", value="performance"),
        Entry(name="CPU clock now, slowest", value=800_000_000, unit="hertz"),
        Entry(name="CPU clock now, fastest", value=3_400_000_000, unit="hertz"),
        Entry(name="CPU clock at most", value=3_500_000_000, unit="hertz"),
    )


def test_governors_that_differ_are_all_named(tmp_path: Path) -> None:
    files = _clock(0, 800_000, "powersave") | _clock(1, 800_000) | _clock(2, 800_000)
    assert next(cpu_clocks(_write(tmp_path, files))).value == "performance, powersave"


def test_clocks_that_the_kernel_does_not_set_are_those_of_cpuinfo(tmp_path: Path) -> None:
    text = "processor\t: 0\ncpu MHz\t\t: 2596.092\n\nprocessor\t: 1\ncpu MHz\t\t: 2601\n"
    governor, slowest, fastest, most = cpu_clocks(_write(tmp_path, {"proc/cpuinfo": text}))
    assert (slowest.value, fastest.value) == (2_596_092_000, 2_601_000_000)
    assert governor.value is None
    assert most.value is None
    assert most.reason is not None
    assert "has no cpufreq" in most.reason


def test_interfaces_that_are_up_have_their_speed(tmp_path: Path) -> None:
    files = {
        "sys/class/net/eth1/operstate": "up\n",
        "sys/class/net/eth1/speed": "100000\n",
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/eth0/speed": "-1\n",
        "sys/class/net/down0/operstate": "down\n",
        "sys/class/net/lo/operstate": "unknown\n",
    }
    assert tuple(interfaces(_write(tmp_path, files))) == (
        Entry(name="eth0", reason="it is up, and its driver reports no speed"),
        Entry(name="eth1", value=100_000_000_000, unit="bits_per_second"),
    )


def test_infiniband_ports_speak_the_kernels_words(tmp_path: Path) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    files = {
        f"{port}/state": "4: ACTIVE\n",
        f"{port}/rate": "400 Gb/sec (4X NDR)\n",
        f"{port}/link_layer": "InfiniBand\n",
    }
    assert tuple(infiniband_ports(_write(tmp_path, files))) == (
        Entry(name="mlx5_0, port 1", value="ACTIVE, 400 Gb/sec (4X NDR), InfiniBand"),
    )


def test_settings_of_the_kernel_are_read(tmp_path: Path) -> None:
    files = {
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "proc/meminfo": "MemTotal:  100 kB\nSwapCached:  7 kB\nSwapTotal:  4096 kB\nSwapFree:  1024 kB\n",
        "proc/sys/vm/swappiness": "60\n",
        "proc/sys/kernel/numa_balancing": "1\n",
    }
    assert tuple(kernel_settings(_write(tmp_path, files))) == (
        Entry(name="transparent huge pages", value="madvise"),
        Entry(name="swap", value=4 << 20, unit="bytes"),
        Entry(name="swap, free", value=1 << 20, unit="bytes"),
        Entry(name="swappiness", value="60"),
        Entry(name="NUMA balancing", value="on"),
    )


@pytest.mark.parametrize("read", [numa_nodes, cpu_clocks, kernel_settings])
def test_a_bare_tree_is_all_reasons(read: object, tmp_path: Path) -> None:
    entries = list(read(tmp_path))  # type: ignore[operator]
    assert entries
    assert all(entry.value is None and entry.reason for entry in entries)


def test_a_bare_tree_has_no_network() -> None:
    assert next(interfaces(Path("/nowhere"))).value == "no interface is up"
    assert next(infiniband_ports(Path("/nowhere"))).value == "no port"


def test_a_file_without_the_line_is_said(tmp_path: Path) -> None:
    entries = list(kernel_settings(_write(tmp_path, {"proc/meminfo": "MemTotal:  100 kB\n"})))
    assert entries[1] == Entry(name="swap", reason="/proc/meminfo has no SwapTotal")


def test_the_real_trees_are_read() -> None:
    for read in (numa_nodes, cpu_clocks, interfaces, infiniband_ports, kernel_settings):
        assert all((entry.value is None) == (entry.reason is not None) for entry in read())
