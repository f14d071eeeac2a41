"""A node's /proc and /sys as files in a folder: two NUMA nodes, an NVMe disk of two paths, InfiniBand beside RoCE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from collectors.host.collector import HostCollector
from collectors.host.procfs import ClockState, KernelFiles
from collectors.metrics.metric import Metric, Sample

IB = "sys/class/infiniband/mlx5_0/ports/1"
ROCE = "sys/class/infiniband/mlx5_bond_0/ports/1"

KEPT = ClockState(offset=-1_500_000, max_error_us=2_500, status=0x2001)
"""A clock that NTP keeps, in nanoseconds: 1.5 ms are left to correct."""

FILES = {
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n\nID=ubuntu\n',
    "proc/sys/kernel/hostname": "node7\n",
    "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
    "sys/module/nvidia/version": "580.65.06\n",
    "proc/stat": "cpu  1050 25 300 10000 50 10 20 5 200 12\ncpu0 500 25 300 10000 50 10 20 5 200 12\nintr 7 0 7\n",
    "proc/loadavg": "3.50 2.00 1.00 4/126 7169\n",
    "proc/pressure/cpu": (
        "some avg10=44.24 avg60=45.81 avg300=37.34 total=12983703158\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    ),
    "proc/pressure/io": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1250000\n"
    ),
    "proc/pressure/irq": "full avg10=0.00 avg60=0.00 avg300=0.00 total=500\n",
    "proc/pressure/memory": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    ),
    "proc/meminfo": (
        "MemTotal:       24684092 kB\nMemFree:        23030216 kB\nMemAvailable:   23426056 kB\n"
        "Buffers:            3524 kB\nCached:           339040 kB\nDirty:              4456 kB\n"
        "Writeback:            44 kB\nShmem:             11176 kB\nSwapTotal:       8388608 kB\n"
        "SwapFree:        8380416 kB\nHugePages_Total:       2\nHugepagesize:       2048 kB\n"
    ),
    "proc/vmstat": "nr_free_pages 5757554\npswpin 3\npswpout 5\npgfault 907846871\npgmajfault 38709\n",
    "proc/diskstats": (
        "   7       0 loop0 11 0 22 1 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
        " 259       0 nvme0c0n1 1814333 94917 58727154 2378132 284179 481496 34147776 205577 0 307108 2615691\n"
        " 259       1 nvme0n1 1814333 94917 58727154 2378132 284179 481496 34147776 205577 0 307108 2615691\n"
        " 259       2 nvme0n1p1 5 0 5 5 5 5 5 5 0 5 5\n"
        " 104       0 cciss/c0d0 1 0 8 3 2 0 16 4 0 6 7 0 0 0 0\n"
    ),
    "proc/net/dev": (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls "
        "carrier compressed\n"
        "    lo:       7       1    0    0    0     0          0         0        7       1    0    0    0     0       "
        "0          0\n"
        "  eth0: 5000000000 21315    2    4    0     0          0         0      123   14929    1    3    0     0    "
        "   0          0\n"
    ),
    "proc/sys/vm/numa_stat": "1\n",
    "sys/devices/system/node/online": "0-1\n",
    "sys/devices/system/node/node0/meminfo": (
        "Node 0 MemTotal:       12000000 kB\nNode 0 MemFree:        11000000 kB\nNode 0 MemUsed:         1000000 kB\n"
        "Node 0 FilePages:        300000 kB\nNode 0 HugePages_Total:     0\n"
    ),
    "sys/devices/system/node/node0/numastat": (
        "numa_hit 852\nnuma_miss 4\nnuma_foreign 9\ninterleave_hit 1\nlocal_node 850\nother_node 6\n"
    ),
    "sys/devices/system/node/node1/meminfo": (
        "Node 1 MemTotal:       12684092 kB\nNode 1 MemFree:        12030216 kB\nNode 1 FilePages:         39040 kB\n"
    ),
    "sys/devices/system/node/node1/numastat": (
        "numa_hit 70\nnuma_miss 9\nnuma_foreign 4\ninterleave_hit 0\nlocal_node 60\nother_node 19\n"
    ),
    f"{IB}/link_layer": "InfiniBand\n",
    f"{IB}/state": "4: ACTIVE\n",
    f"{IB}/phys_state": "5: LinkUp\n",
    f"{IB}/rate": "400 Gb/sec (4X NDR)\n",
    f"{IB}/counters/port_rcv_data": "1000000000000\n",
    f"{IB}/counters/port_xmit_data": "250\n",
    f"{IB}/counters/port_xmit_wait": "77\n",
    f"{IB}/counters/port_rcv_packets": "5\n",
    f"{IB}/counters/symbol_error": "3\n",
    f"{IB}/counters/link_downed": "255\n",
    f"{IB}/counters/port_rcv_switch_relay_errors": "40000\n",
    f"{ROCE}/link_layer": "Ethernet\n",
    f"{ROCE}/state": "1: DOWN\n",
    f"{ROCE}/phys_state": "3: Disabled\n",
    f"{ROCE}/rate": "10 Gb/sec (1X QDR)\n",
    f"{ROCE}/counters/port_rcv_data": "8\n",
    f"{ROCE}/counters/port_xmit_data": "9\n",
    f"{ROCE}/hw_counters/out_of_sequence": "12\n",
    f"{ROCE}/hw_counters/lifespan": "10\n",
}
LINKS = {
    "sys/block/loop0": "../devices/virtual/block/loop0",
    "sys/block/nvme0c0n1": "../devices/pci0000:00/0000:00:02.0/nvme/nvme0/nvme0c0n1",
    "sys/block/nvme0n1": "../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
    "sys/block/cciss!c0d0": "../devices/pci0000:00/0000:00:05.0/block/cciss!c0d0",
}


@dataclass(slots=True)
class FakeClock:
    """Stands at `now_s`."""

    now_s: float = 0.0

    def ns(self) -> int:
        return round(self.now_s * 1e9)


def recorded(folder: Path, changes: Mapping[str, str] | None = None, *, without: tuple[str, ...] = ()) -> KernelFiles:
    """The node's files in a folder, but for these, and without those files or whole folders."""
    for path, text in {**FILES, **(changes or {})}.items():
        if not path.startswith(without):
            write(folder, path, text)
    for path, target in LINKS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(target)
    return KernelFiles(root=folder, page_bytes=4096, ticks_per_s=100, clock=lambda: KEPT)


def write(folder: Path, path: str, text: str) -> None:
    """What the kernel says there from now on."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def of(samples: Iterable[object], metric: Metric) -> dict[tuple[str, ...], float]:
    """The metric's values by those of its labels."""
    return {
        tuple(sample.labels[label] for label in metric.labels): sample.value
        for sample in samples
        if isinstance(sample, Sample) and sample.metric == metric.name
    }


def read(files: KernelFiles) -> list[Sample]:
    """What a new collector gives at once."""
    return HostCollector(files).read()
