"""The host as a whole: what is withheld is said once, and the rest goes on."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from collectors.host.collector import HostCollector
from collectors.metrics import host
from tests.collectors.host.nodes import IB, FakeClock, of, recorded, write


def test_every_metric_of_the_host_is_given_where_the_kernel_has_it(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path))
    given = {sample.metric for sample in collector.read()}
    assert given == {metric.name for metric in host.METRICS}
    assert collector.absent == ()


def test_the_node_is_told_by_its_host_its_system_and_the_driver(tmp_path: Path) -> None:
    (told,) = (one.labels for one in HostCollector(recorded(tmp_path)).read() if one.metric == host.NODE_INFO.name)
    assert (told["host"], told["os"]) == ("node7", "Ubuntu 24.04.1 LTS")
    assert (told["kernel"], told["driver"]) == ("6.8.0-45-generic", "580.65.06")
    assert told["python"] == platform.python_version()
    assert told["version"]


def test_a_node_without_a_driver_and_a_name_of_its_system_has_empty_ones(tmp_path: Path) -> None:
    files = recorded(tmp_path, without=("sys/module", "etc"))
    (told,) = (one.labels for one in HostCollector(files).read() if one.metric == host.NODE_INFO.name)
    assert (told["host"], told["os"], told["driver"]) == ("node7", "", "")


def test_a_series_is_given_once(tmp_path: Path) -> None:
    series = [(sample.metric, *sorted(sample.labels.items())) for sample in HostCollector(recorded(tmp_path)).read()]
    assert len(series) == len(set(series))


def test_a_part_that_the_kernel_has_not_is_said_once_and_asked_for_no_more(tmp_path: Path) -> None:
    files = recorded(tmp_path, without=("proc/pressure",))
    collector = HostCollector(files)
    first = collector.read()
    write(tmp_path, "proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
    assert collector.read() == first
    assert of(first, host.HOST_PRESSURE_SECONDS) == {}
    assert of(first, host.HOST_LOAD) == {(): 3.5}
    assert collector.absent == ("host: pressure: /proc/pressure: No such file or directory; left out from here on",)


def test_a_part_that_only_fails_at_times_is_asked_again(tmp_path: Path) -> None:
    files = recorded(tmp_path)
    (tmp_path / "proc/loadavg").unlink()
    (tmp_path / "proc/loadavg").mkdir()  # EISDIR: nothing that a kernel says for good.
    collector = HostCollector(files)
    assert of(collector.read(), host.HOST_LOAD) == {}
    assert of(collector.read(), host.HOST_LOAD) == {}
    (tmp_path / "proc/loadavg").rmdir()
    write(tmp_path, "proc/loadavg", "1.25 0 0 1/1 1\n")
    assert of(collector.read(), host.HOST_LOAD) == {(): 1.25}
    assert collector.absent == ("host: load: /proc/loadavg: Is a directory; sometimes left out",)


def test_a_file_that_is_written_otherwise_leaves_its_part_out_alone(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path, {"proc/meminfo": "MemTotal: 5 kB\n"}))
    samples = collector.read()
    assert of(samples, host.HOST_MEMORY_BYTES) == {}
    assert of(samples, host.HOST_LOAD) == {(): 3.5}
    assert collector.absent == (
        "host: memory: its format is unknown ('MemAvailable' is missing); left out from here on",
    )


def test_a_system_without_proc_has_no_samples_and_one_reason(tmp_path: Path) -> None:
    collector = HostCollector(recorded(tmp_path, without=("proc",)))
    assert collector.read() == []
    assert collector.absent == (f"host: this system has no /proc ({sys.platform}); samples of the host are left out",)


def test_a_part_that_costs_more_is_asked_less_often_and_shown_all_the_time(tmp_path: Path) -> None:
    clock = FakeClock()
    files = recorded(tmp_path)
    collector = HostCollector(files, clock_ns=clock.ns)
    before = of(collector.read(), host.HOST_INFINIBAND_BYTES)
    write(tmp_path, f"{IB}/counters/port_xmit_data", "300\n")
    write(tmp_path, "proc/loadavg", "9.00 0 0 1/1 1\n")
    clock.now_s = 0.1
    samples = collector.read()
    assert of(samples, host.HOST_INFINIBAND_BYTES) == before
    assert of(samples, host.HOST_LOAD) == {(): 9.0}
    clock.now_s = 0.5
    assert of(collector.read(), host.HOST_INFINIBAND_BYTES)["mlx5_0", "1", "sent"] == 1200


def test_polling_a_node_needs_no_torch() -> None:
    check = "import collectors.node.watch, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
