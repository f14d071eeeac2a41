"""Disks, network interfaces and NUMA nodes: each once, by its own name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from collectors.host.collector import HostCollector
from collectors.host.procfs import KernelFiles
from collectors.metrics import host
from tests.collectors.host.nodes import of, read, recorded

KIB = 1024


def test_bytes_of_a_disk_are_sectors_of_512_and_its_times_seconds(tmp_path: Path) -> None:
    samples = read(recorded(tmp_path))
    disk = "nvme0c0n1"
    assert of(samples, host.HOST_DISK_BYTES)[disk, "read"] == 58727154 * 512
    assert of(samples, host.HOST_DISK_BYTES)[disk, "written"] == 34147776 * 512
    assert of(samples, host.HOST_DISK_REQUESTS)[disk, "read"] == 1814333
    assert of(samples, host.HOST_DISK_REQUEST_SECONDS)[disk, "written"] == 205.577
    assert of(samples, host.HOST_DISK_BUSY_SECONDS)[disk,] == 307.108


def test_partitions_loops_and_a_disk_over_its_own_paths_are_not_counted_again(tmp_path: Path) -> None:
    devices = {device for (device,) in of(read(recorded(tmp_path)), host.HOST_DISK_BUSY_SECONDS)}
    assert devices == {"nvme0c0n1", "cciss/c0d0"}


def test_an_interfaces_bytes_losses_and_errors_are_told_apart_by_direction(tmp_path: Path) -> None:
    samples = read(recorded(tmp_path))
    assert of(samples, host.HOST_NETWORK_BYTES) == {
        ("lo", "received"): 7,
        ("lo", "sent"): 7,
        ("eth0", "received"): 5_000_000_000,
        ("eth0", "sent"): 123,
    }
    dropped, errors = of(samples, host.HOST_NETWORK_DROPPED), of(samples, host.HOST_NETWORK_ERRORS)
    assert (dropped["eth0", "received"], dropped["eth0", "sent"]) == (4, 3)
    assert (errors["eth0", "received"], errors["eth0", "sent"]) == (2, 1)


def test_counters_that_touch_the_name_of_their_interface_are_read(tmp_path: Path) -> None:
    headings = "Inter-| Receive | Transmit\n face |bytes |bytes\n"
    line = "enp1s0:18446744073709551615 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n"
    moved = of(read(recorded(tmp_path, {"proc/net/dev": headings + line})), host.HOST_NETWORK_BYTES)
    assert moved == {("enp1s0", "received"): 18446744073709551615, ("enp1s0", "sent"): 9}


def test_each_numa_node_has_its_memory_and_tells_whom_it_served(tmp_path: Path) -> None:
    samples = read(recorded(tmp_path))
    assert of(samples, host.HOST_NUMA_MEMORY_BYTES) == {
        ("0", "total"): 12000000 * KIB,
        ("0", "free"): 11000000 * KIB,
        ("0", "cached"): 300000 * KIB,
        ("1", "total"): 12684092 * KIB,
        ("1", "free"): 12030216 * KIB,
        ("1", "cached"): 39040 * KIB,
    }
    assert of(samples, host.HOST_NUMA_ALLOCATIONS) == {
        ("0", "hit"): 852,
        ("0", "miss"): 4,
        ("1", "hit"): 70,
        ("1", "miss"): 9,
    }
    assert of(samples, host.HOST_NUMA_ALLOCATORS)["1", "remote"] == 19


def test_hits_and_misses_are_the_same_allocations_as_local_and_remote_ones(tmp_path: Path) -> None:
    samples = read(recorded(tmp_path))
    for metric in (host.HOST_NUMA_ALLOCATIONS, host.HOST_NUMA_ALLOCATORS):
        assert sum(of(samples, metric).values()) == 852 + 4 + 70 + 9


def test_a_kernel_that_is_told_not_to_count_allocations_gives_memory_only(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path, {"proc/sys/vm/numa_stat": "0\n"}))
    samples = collector.read()
    assert len(of(samples, host.HOST_NUMA_MEMORY_BYTES)) == 6
    assert of(samples, host.HOST_NUMA_ALLOCATIONS) == {}
    assert collector.absent == (
        "host: NUMA: the kernel is set not to count allocations (/proc/sys/vm/numa_stat is 0); they are left out",
    )


def test_a_kernel_without_that_switch_counts(tmp_path: Path) -> None:
    files = recorded(tmp_path, without=("proc/sys",))
    assert len(of(read(files), host.HOST_NUMA_ALLOCATIONS)) == 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRace(KernelFiles):
    """A disk and a NUMA node are gone between their folder's reading and their own."""

    there: dict[str, str] = field(default_factory=lambda: {"sys/block": "nbd9", "sys/devices/system/node": "node9"})

    def names(self, path: str) -> tuple[str, ...]:
        """See `KernelFiles`."""
        gone = self.there.pop(path, None)
        return (*KernelFiles.names(self, path), *([] if gone is None else [gone]))


def test_what_goes_while_it_is_read_takes_nothing_else_with_it(tmp_path: Path) -> None:
    files = recorded(tmp_path)
    collector = HostCollector(FakeRace(root=files.root))
    assert {sample.metric for sample in collector.read()} == {sample.metric for sample in read(files)}
    assert not any("left out from here on" in reason for reason in collector.absent)


def test_a_numa_node_that_is_there_and_lacks_a_file_is_said(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path, without=("sys/devices/system/node/node1/numastat",)))
    assert of(collector.read(), host.HOST_NUMA_MEMORY_BYTES) == {}
    assert any("node1/numastat" in reason for reason in collector.absent)
