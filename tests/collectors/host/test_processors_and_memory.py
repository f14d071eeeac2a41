"""CPU, load, pressure, memory and paging: the kernel's figures in base units."""

from __future__ import annotations

from pathlib import Path

from collectors.host.collector import HostCollector
from collectors.metrics import host
from tests.collectors.host.nodes import of, read, recorded, write

KIB = 1024


def test_cpu_time_is_in_seconds_and_a_guests_time_is_not_counted_twice(tmp_path: Path) -> None:
    assert of(read(recorded(tmp_path)), host.HOST_CPU_SECONDS) == {
        ("user",): 10.5,
        ("nice",): 0.25,
        ("system",): 3.0,
        ("idle",): 100.0,
        ("iowait",): 0.5,
        ("irq",): 0.1,
        ("softirq",): 0.2,
        ("steal",): 0.05,
    }


def test_a_mode_that_the_kernel_sets_back_stays_where_it_was(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path))
    collector.read()
    write(tmp_path, "proc/stat", "cpu  1060 25 300 10000 49 10 20 5 200 12\n")
    held = of(collector.read(), host.HOST_CPU_SECONDS)
    assert (held["user",], held["iowait",]) == (10.6, 0.5)


def test_pressure_is_in_seconds_and_full_of_the_cpu_which_means_nothing_is_left_out(tmp_path: Path) -> None:
    assert of(read(recorded(tmp_path)), host.HOST_PRESSURE_SECONDS) == {
        ("cpu", "some"): 12983.703158,
        ("io", "some"): 2.5,
        ("io", "full"): 1.25,
        ("irq", "full"): 0.0005,
        ("memory", "some"): 3.0,
        ("memory", "full"): 0.0,
    }


def test_memory_is_in_bytes_by_kind(tmp_path: Path) -> None:
    assert of(read(recorded(tmp_path)), host.HOST_MEMORY_BYTES) == {
        ("total",): 24684092 * KIB,
        ("available",): 23426056 * KIB,
        ("used",): 1258036 * KIB,
        ("free",): 23030216 * KIB,
        ("cached",): 339040 * KIB,
        ("shared",): 11176 * KIB,
        ("buffers",): 3524 * KIB,
        ("dirty",): 4500 * KIB,
    }


def test_swap_is_in_bytes_as_a_level_and_as_what_was_moved(tmp_path: Path) -> None:
    samples = read(recorded(tmp_path))
    assert of(samples, host.HOST_SWAP_BYTES) == {("total",): 8 << 30, ("used",): 8 << 20}
    assert of(samples, host.HOST_SWAPPED_BYTES) == {("in",): 3 * 4096, ("out",): 5 * 4096}


def test_a_kernel_built_without_swap_still_counts_page_faults(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path, {"proc/vmstat": "pgfault 12\npgmajfault 3\n"}))
    samples = collector.read()
    assert of(samples, host.HOST_PAGE_FAULTS) == {(): 12}
    assert of(samples, host.HOST_MAJOR_PAGE_FAULTS) == {(): 3}
    assert of(samples, host.HOST_SWAPPED_BYTES) == {}
    assert collector.absent == ("host: paging: the kernel was built without swap; bytes swapped are left out",)
