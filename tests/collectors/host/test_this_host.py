"""This very host, beside what psutil and the kernel say of it."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from collectors.host.collector import HostCollector
from collectors.metrics import host
from collectors.metrics.metric import Metric
from tests.collectors.host.nodes import of

pytestmark = pytest.mark.skipif(not Path("/proc/net/dev").exists(), reason="no /proc to compare with")


def _here(metric: Metric, *labels: str) -> Callable[[], float]:
    """What asks for one value of this host."""
    collector = HostCollector()
    return lambda: of(collector.read(), metric)[labels]


def test_total_memory_is_what_psutil_says() -> None:
    assert _here(host.HOST_MEMORY_BYTES, "total")() == psutil.virtual_memory().total


def test_cpu_seconds_are_those_of_psutil_at_the_same_time() -> None:
    before = psutil.cpu_times().user
    user_s = _here(host.HOST_CPU_SECONDS, "user")()
    assert before <= user_s <= psutil.cpu_times().user


def test_disks_and_their_bytes_are_those_of_psutil() -> None:
    before = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    read_bytes = of(HostCollector().read(), host.HOST_DISK_BYTES)
    after = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    for device, direction in read_bytes:
        if direction == "written" and device in before:
            assert before[device].write_bytes <= read_bytes[device, direction] <= after[device].write_bytes


def test_bytes_of_the_loopback_grow_by_what_is_sent() -> None:
    sent = _here(host.HOST_NETWORK_BYTES, "lo", "sent")
    before = sent()
    payload = bytes(50_000)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, receiver.dup() as sender:
        receiver.bind(("127.0.0.1", 0))
        sender.sendto(payload, receiver.getsockname())
        assert receiver.recv(100_000) == payload
    kernel_before = psutil.net_io_counters(pernic=True, nowrap=False)["lo"].bytes_sent
    after = sent()
    kernel_after = psutil.net_io_counters(pernic=True, nowrap=False)["lo"].bytes_sent
    assert kernel_before <= after <= kernel_after  # Others use the loopback, too.
    assert after - before >= len(payload)


def test_touching_new_memory_is_counted_as_page_faults() -> None:
    faults = _here(host.HOST_PAGE_FAULTS)
    before = faults()
    pages, page = 2_000, os.sysconf("SC_PAGE_SIZE")
    with mmap.mmap(-1, pages * page) as new:  # Not a bytearray: malloc may give memory that was touched before.
        new[::page] = b"x" * pages
    assert faults() > before


def test_every_reason_names_the_host_and_each_is_said_once() -> None:
    collector = HostCollector()
    collector.read()
    collector.read()
    assert len(collector.absent) == len(set(collector.absent))
    assert all(reason.startswith("host: ") for reason in collector.absent)
