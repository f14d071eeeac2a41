"""What the host gives: the kernel's own figures, each once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.catalogue import host
from collectors.host import HostCollector
from collectors.metric import Sample

needs_proc = pytest.mark.skipif(not Path("/proc/net/dev").exists(), reason="no /proc to compare with")
Times = namedtuple("Times", "user nice system idle iowait guest guest_nice")  # As psutil makes it.


@dataclass
class RecordedHost:
    """psutil's answers of one moment. without: functions that raise, and what."""

    without: dict[str, Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def cpu_times(self) -> Any:
        self._ask("cpu_times")
        return Times(user=10.5, nice=0.25, system=3.0, idle=100.0, iowait=0.5, guest=2.0, guest_nice=0.125)

    def virtual_memory(self) -> Any:
        self._ask("virtual_memory")
        return SimpleNamespace(total=64 << 30, available=48 << 30, free=1 << 30)

    def getloadavg(self) -> tuple[float, float, float]:
        self._ask("getloadavg")
        return (3.5, 2.0, 1.0)

    def net_io_counters(self, pernic: bool, nowrap: bool) -> Any:
        self._ask("net_io_counters")
        assert pernic
        assert not nowrap
        return {
            "lo": SimpleNamespace(bytes_recv=7, bytes_sent=7),
            "eth0": SimpleNamespace(bytes_recv=5_000_000_000, bytes_sent=123),
        }

    def _ask(self, function: str) -> None:
        self.asked.append(function)
        if function in self.without:
            raise self.without[function]


def _value(samples: list[Sample], metric: str, **labels: str) -> float:
    (value,) = [sample.value for sample in samples if (sample.metric, sample.labels) == (metric, labels)]
    return value


def test_the_host_is_read_in_base_units_and_no_time_is_counted_twice() -> None:
    assert HostCollector(RecordedHost()).read() == [
        host.HOST_CPU_SECONDS.at(10.5, mode="user"),
        host.HOST_CPU_SECONDS.at(0.25, mode="nice"),
        host.HOST_CPU_SECONDS.at(3.0, mode="system"),
        host.HOST_CPU_SECONDS.at(100.0, mode="idle"),
        host.HOST_CPU_SECONDS.at(0.5, mode="iowait"),
        host.HOST_MEMORY_BYTES.at(64 << 30, kind="total"),
        host.HOST_MEMORY_BYTES.at(48 << 30, kind="available"),
        host.HOST_LOAD.at(3.5),
        host.HOST_NETWORK_BYTES.at(7, interface="lo", direction="received"),
        host.HOST_NETWORK_BYTES.at(7, interface="lo", direction="sent"),
        host.HOST_NETWORK_BYTES.at(5_000_000_000, interface="eth0", direction="received"),
        host.HOST_NETWORK_BYTES.at(123, interface="eth0", direction="sent"),
    ]


def test_a_part_that_the_kernel_withholds_is_said_once_and_the_rest_goes_on() -> None:
    reader = RecordedHost(without={"net_io_counters": PermissionError(13, "Permission denied", "/proc/net/dev")})
    collector = HostCollector(reader)
    first, second = collector.read(), collector.read()
    assert first == second
    assert {sample.metric for sample in first} == {
        host.HOST_CPU_SECONDS.name,
        host.HOST_MEMORY_BYTES.name,
        host.HOST_LOAD.name,
    }
    assert reader.asked.count("net_io_counters") == 1
    assert collector.absent == (
        "host: network bytes cannot be read ([Errno 13] Permission denied: '/proc/net/dev')"
        " and is left out from here on",
    )


@needs_proc
def test_total_memory_is_the_kernels() -> None:
    kibibytes = int(_line_of(Path("/proc/meminfo"), "MemTotal:")[0])
    assert _value(HostCollector().read(), host.HOST_MEMORY_BYTES.name, kind="total") == kibibytes * 1024


@needs_proc
def test_bytes_of_the_loopback_are_the_kernels_and_grow_by_what_is_sent() -> None:
    collector = HostCollector()
    name = host.HOST_NETWORK_BYTES.name
    before = _value(collector.read(), name, interface="lo", direction="sent")
    payload = bytes(50_000)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, receiver.dup() as sender:
        receiver.bind(("127.0.0.1", 0))
        sender.sendto(payload, receiver.getsockname())
        assert receiver.recv(100_000) == payload
    kernel_before = int(_line_of(Path("/proc/net/dev"), "lo:")[8])
    after = _value(collector.read(), name, interface="lo", direction="sent")
    kernel_after = int(_line_of(Path("/proc/net/dev"), "lo:")[8])
    assert kernel_before <= after <= kernel_after  # Others use the loopback, too.
    assert after - before >= len(payload)


@needs_proc
def test_cpu_seconds_are_the_kernels_ticks() -> None:
    ticks_a_second = os.sysconf("SC_CLK_TCK")

    def kernel_user_s() -> float:
        return int(_line_of(Path("/proc/stat"), "cpu")[0]) / ticks_a_second

    before = kernel_user_s()
    user = _value(HostCollector().read(), host.HOST_CPU_SECONDS.name, mode="user")
    assert before <= user <= kernel_user_s()


def test_polling_a_node_needs_no_torch() -> None:
    check = "import collectors.sampler, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _line_of(path: Path, first_word: str) -> list[str]:
    """The words after the first one of the line that it begins."""
    for line in path.read_text().splitlines():
        words = line.split()
        if words and words[0] == first_word:
            return words[1:]
    raise LookupError(f"{path} has no line {first_word}")
