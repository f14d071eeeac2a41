"""InfiniBand and RoCE ports: words become bytes, and a port that fails leaves the others be."""

from __future__ import annotations

from pathlib import Path

from collectors.host.collector import HostCollector
from collectors.metrics import host
from tests.collectors.host.nodes import IB, ROCE, FakeClock, of, read, recorded, write


def test_a_ports_words_of_four_bytes_become_bytes(tmp_path: Path) -> None:
    assert of(read(recorded(tmp_path)), host.HOST_INFINIBAND_BYTES) == {
        ("mlx5_0", "1", "received"): 4_000_000_000_000,
        ("mlx5_0", "1", "sent"): 1000,
        ("mlx5_bond_0", "1", "received"): 32,
        ("mlx5_bond_0", "1", "sent"): 36,
    }


def test_a_ports_state_is_in_the_kernels_words(tmp_path: Path) -> None:
    assert set(of(read(recorded(tmp_path)), host.HOST_INFINIBAND_INFO)) == {
        ("mlx5_0", "1", "InfiniBand", "ACTIVE", "LinkUp"),
        ("mlx5_bond_0", "1", "Ethernet", "DOWN", "Disabled"),
    }


def test_only_a_link_that_is_up_has_a_speed(tmp_path: Path) -> None:
    assert of(read(recorded(tmp_path)), host.HOST_INFINIBAND_LINK) == {("mlx5_0", "1"): 50e9}


def test_waiting_is_told_where_the_port_counts_it(tmp_path: Path) -> None:
    assert of(read(recorded(tmp_path)), host.HOST_INFINIBAND_WAIT) == {("mlx5_0", "1"): 77}


def test_errors_are_those_that_a_port_counts_and_no_false_alarm_among_them(tmp_path: Path) -> None:
    assert of(read(recorded(tmp_path)), host.HOST_INFINIBAND_ERRORS) == {
        ("mlx5_0", "1", "symbol_error"): 3,
        ("mlx5_0", "1", "link_downed"): 255,
        ("mlx5_bond_0", "1", "out_of_sequence"): 12,
    }


def test_a_node_without_ports_says_so_once(tmp_path: Path) -> None:
    clock = FakeClock()
    collector = HostCollector(recorded(tmp_path, without=("sys/class/infiniband",)), clock_ns=clock.ns)
    collector.read()
    clock.now_s = 10
    collector.read()
    assert collector.absent == ("host: no InfiniBand or RoCE port (none in /sys/class/infiniband)",)


def test_ports_that_come_later_are_seen(tmp_path: Path) -> None:
    clock = FakeClock()
    collector = HostCollector(recorded(tmp_path, without=("sys/class/infiniband",)), clock_ns=clock.ns)
    collector.read()
    port = {"link_layer": "InfiniBand\n", "state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n"}
    port |= {"rate": "200 Gb/sec (4X HDR)\n", "counters/port_rcv_data": "1\n", "counters/port_xmit_data": "2\n"}
    for name, text in port.items():
        write(tmp_path, f"{IB}/{name}", text)
    clock.now_s = 1
    assert of(collector.read(), host.HOST_INFINIBAND_LINK) == {("mlx5_0", "1"): 25e9}


def test_a_port_that_loses_a_file_has_a_reason_and_the_other_is_read(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path, without=(f"{IB}/state",)))
    assert {device for device, *_ in of(collector.read(), host.HOST_INFINIBAND_BYTES)} == {"mlx5_bond_0"}
    assert collector.absent == (
        f"host: InfiniBand mlx5_0 port 1: /{IB}/state: No such file or directory; sometimes left out",
    )


def test_a_port_that_counts_no_data_shows_its_state_alone(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path, without=(f"{ROCE}/counters",)))
    samples = collector.read()
    assert len(of(samples, host.HOST_INFINIBAND_INFO)) == 2
    assert {device for device, *_ in of(samples, host.HOST_INFINIBAND_BYTES)} == {"mlx5_0"}
    assert collector.absent == ("host: InfiniBand mlx5_bond_0 port 1: no data counters; its bytes are left out",)


def test_a_port_that_answers_with_no_number_has_a_reason(tmp_path: Path) -> None:
    changes = {f"{ROCE}/counters/port_rcv_data": "N/A (no PMA)\n"}
    collector = HostCollector(recorded(tmp_path, changes))
    assert {device for device, *_ in of(collector.read(), host.HOST_INFINIBAND_BYTES)} == {"mlx5_0"}
    (reason,) = collector.absent
    assert reason.startswith("host: InfiniBand mlx5_bond_0 port 1: ")
    assert "N/A (no PMA)" in reason
