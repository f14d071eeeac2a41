"""One server shows live runs and results together, and begins and ends in order."""

import os
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Shown

from bench.engines.cluster import Capacity
from bench.engines.wire.frames import program_version
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.serve.demo import NOTICE, open_demonstration
from bench.serve.server import NodePlan, once, open_server, serving
from bench.store import run_dir
from bench.store.history import History
from bench.store.run_dir import Run, begin
from bench.store.suite_record import SuiteRecord
from collectors.dcgm import JobMapping
from collectors.metrics.agent import AGENT_COLLECTOR, RUN_INFO
from collectors.metrics.gpu import GPU_PROCESS_MEMORY, GPU_STATE, RANK_GPU, RANK_GPU_MEMORY
from collectors.metrics.host import HOST_LOAD, HOST_NETWORK_BYTES
from collectors.metrics.metric import Sample
from collectors.metrics.rank import STEP_SECONDS
from collectors.metrics.results import RUN_STEP_SECONDS
from collectors.metrics.suites import SUITE_CASE_INFO
from collectors.node.registry import PollingConfig
from collectors.nvml.queries import GpuProcess
from collectors.prometheus.http_server import Server
from collectors.sample_log import Opened, Polled, Reading, SampleLog
from tests.bench.made.examples import make_machine, make_summary, small_case
from tests.collectors.fake_collectors import FakeCollector, ended
from tests.collectors.knocking import Notices
from tests.waiting import wait_until


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with one result."""
    address = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(address) as history:
        history.add(make_summary(), make_machine())
    return address


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def _shown(address: str) -> list[Shown]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return [one for family in text_string_to_metric_families(answer.read().decode()) for one in family.samples]


def _names(server: Server) -> set[str]:
    return {sample.name for sample in _shown(server.url)}


def _write_step(folder: Path, run: str, *samples: Sample) -> None:
    log = SampleLog(folder / "rank0.jsonl")
    log.write(Opened(run=run, trial=0, rank=0, time_ns=0, pid=1, host="node0"))
    log.write(Reading(trial=0, time_ns=0, mark="measured", step=1, samples=list(samples)))
    log.close()


def test_what_goes_on_is_said_once_and_again_when_it_has_been_away_for_an_hour() -> None:
    now_s, notices = [0.0], Notices()
    tell = once(notices, clock_s=lambda: now_s[0])

    def say_at(at_s: float, text: str) -> int:
        now_s[0] = at_s
        tell(text)
        return len(notices)

    assert say_at(0, "no InfiniBand") == 1
    assert say_at(1, "GPU 3 is lost") == 2
    assert [say_at(at_s, "no InfiniBand") for at_s in range(1_000, 20_000, 1_000)] == [2] * 19
    assert say_at(20_000, "GPU 3 is lost") == 3
    assert say_at(20_001, "no InfiniBand") == 3
    assert [say_at(at_s, "GPU 3 is lost") for at_s in (23_599, 27_199)] == [3, 4]


def test_live_steps_and_results_are_shown_together_and_only_results_stay(tmp_path: Path, url: str) -> None:
    notices = Notices()
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    _write_step(run.folder, run.id, STEP_SECONDS.at(0.5))
    with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=notices) as server:
        wait_until(lambda: RUN_STEP_SECONDS.statistic("median").name in _names(server))
        assert STEP_SECONDS.name in _names(server)
        run.close()
        assert STEP_SECONDS.name not in _names(server)
        assert RUN_STEP_SECONDS.statistic("median").name in _names(server)
    assert notices == [f"serving {server.url}"]


@pytest.mark.parametrize(("source", "question"), [("slurm", "CPUTot"), ("ray", "GPU")])
def test_a_run_shows_what_its_cluster_answered_that_cannot_be(
    source: Literal["slurm", "ray"], question: str, tmp_path: Path, url: str
) -> None:
    cluster = Capacity(whose="a node", asks="", implausible={question: 2}, source=source)
    with serving(tmp_path / "runs", url, port=0, on_notice=Notices(), cluster=cluster) as server:
        assert server is not None
        with urllib.request.urlopen(server.url, timeout=30) as answer:
            page = answer.read().decode()
    assert f'observatory_implausible_total{{question="{question}",source="{source}"}} 2.0' in page.splitlines()


def test_the_landing_page_names_the_version_and_links_to_its_own_pages_alone(tmp_path: Path) -> None:
    opened = open_server(tmp_path, None, host="127.0.0.1", port=0, on_notice=Notices(), results="none")
    with opened as server, urllib.request.urlopen(server.url.removesuffix("metrics"), timeout=30) as answer:
        page = answer.read().decode()
    assert f"Version {program_version()}." in page
    assert re.findall(r'href="([^"]*)"', page) == ["metrics", "healthz"]


def test_suites_of_the_history_are_shown_beside_results(tmp_path: Path, url: str) -> None:
    record = SuiteRecord(id="a", suite="nightly", started_ns=0, progress_ns=1, total=3, running=("ddp",), folder="/a")
    with History(url) as history:
        history.save_suite(record)
    with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=Notices()) as server:
        wait_until(lambda: SUITE_CASE_INFO.name in _names(server))
        assert RUN_STEP_SECONDS.statistic("median").name in _names(server)


def test_an_exporter_of_results_alone_shows_no_run_that_goes_on(tmp_path: Path, url: str) -> None:
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    _write_step(run.folder, run.id, STEP_SECONDS.at(0.5))
    opened = open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=Notices(), results="only")
    with opened as server:
        wait_until(lambda: RUN_STEP_SECONDS.statistic("median").name in _names(server))
        assert STEP_SECONDS.name not in _names(server)
    run.close()


def test_an_exporter_without_results_does_not_ask_the_history(tmp_path: Path) -> None:
    notices = Notices()
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    _write_step(run.folder, run.id, STEP_SECONDS.at(0.5))
    (tmp_path / "broken").write_text("no database" * 100)
    store = f"sqlite:///{tmp_path / 'broken'}"
    opened = open_server(tmp_path / "runs", store, host="127.0.0.1", port=0, on_notice=notices, results="none")
    with opened as server:
        assert STEP_SECONDS.name in _names(server)
    run.close()
    assert notices == [f"serving {server.url}"]


def test_a_store_that_cannot_be_read_is_said_and_live_steps_are_shown(tmp_path: Path) -> None:
    notices = Notices()
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    _write_step(run.folder, run.id, STEP_SECONDS.at(0.5))
    (tmp_path / "broken").write_text("no database" * 100)
    store = f"sqlite:///{tmp_path / 'broken'}"
    with open_server(tmp_path / "runs", store, host="127.0.0.1", port=0, on_notice=notices) as server:
        wait_until(lambda: len(notices) == 2)
        assert STEP_SECONDS.name in _names(server)
    run.close()
    assert notices[1].startswith("no results are shown yet: store sqlite:")


def test_a_sample_without_its_labels_is_said_once_and_the_page_stays_valid(tmp_path: Path, url: str) -> None:
    notices = Notices()
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    odd = Sample(STEP_SECONDS.name, 1.0, {"mood": "bad"})
    _write_step(run.folder, run.id, odd, STEP_SECONDS.at(0.5))
    with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=notices) as server:
        for _ in range(2):
            assert [s.value for s in _shown(server.url) if s.name == STEP_SECONDS.name] == [0.5]
    run.close()
    assert notices[1:] == [f"metric {STEP_SECONDS.name} has labels (mood), not (): left out"]


def test_a_taken_port_is_an_error_with_its_number_and_the_next_move(tmp_path: Path, url: str, taken: int) -> None:
    with (
        pytest.raises(InfrastructureFailed, match=rf"port {taken} of 127\.0\.0\.1 is taken .*--port"),
        open_server(tmp_path, url, host="127.0.0.1", port=taken, on_notice=Notices()),
    ):
        pass


def test_who_can_do_without_gets_a_notice_and_goes_on(tmp_path: Path, url: str, taken: int) -> None:
    notices = Notices()
    with serving(tmp_path, url, port=taken, on_notice=notices) as server:
        assert server is None
    assert len(notices) == 1
    assert f"port {taken} of 127.0.0.1 is taken" in notices[0]


def test_an_embedded_server_answers_as_long_as_one_is_inside(tmp_path: Path, url: str) -> None:
    with serving(tmp_path, url, port=0, on_notice=Notices()) as server:
        assert server is not None
        _shown(server.url)
    with pytest.raises(OSError, match="refused"):
        _shown(server.url)


class FakeGpus(FakeCollector):
    """Knows that this process computes on GPU 3."""

    def processes(self) -> dict[int, tuple[GpuProcess, ...]]:
        return {os.getpid(): (GpuProcess(pid=os.getpid(), gpu="3", uuid="GPU-d", memory_bytes=1 << 30),)}


class FakeProcesses(FakeCollector):
    """Shows this process and another one on GPU 3."""

    def read(self) -> list[Sample]:
        names = ("slice", "process", "run", "rank", "container_id", "pod_uid", "slurm_job")
        labels = {"gpu": "3", **dict.fromkeys(names, "")}
        return [GPU_PROCESS_MEMORY.at(1 << 30, pid=pid, **labels) for pid in (str(os.getpid()), "1")]


def _begin_here(folder: Path) -> Run:
    """A run whose rank is this process."""
    run = begin(small_case(), make_machine(), folder)
    log = SampleLog(run.folder / "rank0.jsonl")
    log.write(Opened(run=run.id, trial=0, rank=0, time_ns=0, pid=os.getpid(), host=socket.gethostname()))
    log.close()
    return run


def test_a_watched_node_is_shown_in_place_of_what_runs_say_of_it(tmp_path: Path, url: str) -> None:
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    _write_step(run.folder, run.id, STEP_SECONDS.at(0.5))
    log = SampleLog(run.folder / "node0.jsonl")
    sent = HOST_NETWORK_BYTES.at(7, interface="eth0", direction="sent")
    log.write(Polled(time_ns=1, samples=[HOST_LOAD.at(99), sent]))
    log.close()
    node = NodePlan(polling=PollingConfig(beat_s=60), opener=lambda polling: [FakeCollector()])
    with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=Notices(), node=node) as server:
        wait_until(lambda: {HOST_LOAD.name, STEP_SECONDS.name} <= _names(server))
        shown = [sample.value for sample in _shown(server.url) if sample.name == HOST_LOAD.name]
        watched = {sample.labels["collector"] for sample in _shown(server.url) if sample.name == AGENT_COLLECTOR.name}
        assert watched == {"fake", "runs"}
        assert HOST_NETWORK_BYTES.name not in _names(server)
    run.close()
    assert shown == [1]


def test_a_rank_is_joined_to_the_gpu_that_its_process_computes_on(tmp_path: Path, url: str) -> None:
    run = _begin_here(tmp_path / "runs")
    node = NodePlan(polling=PollingConfig(beat_s=60), opener=lambda polling: [FakeGpus()])
    with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=Notices(), node=node) as server:
        wait_until(lambda: RANK_GPU.name in _names(server))
        shown = {sample.name: sample for sample in _shown(server.url)}
    run.close()
    place = {"rank": "0", "slot": "0", "gpu": "3", "slice": ""}
    assert shown[RANK_GPU.name].labels == {**place, "run": run.id}
    assert (shown[RANK_GPU_MEMORY.name].labels, shown[RANK_GPU_MEMORY.name].value) == (place, 1 << 30)


def test_a_process_on_a_gpu_is_named_by_the_rank_that_it_is(tmp_path: Path, url: str) -> None:
    run = _begin_here(tmp_path / "runs")
    node = NodePlan(polling=PollingConfig(beat_s=60), opener=lambda polling: [FakeProcesses()])
    with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=Notices(), node=node) as server:
        wait_until(lambda: RUN_INFO.name in _names(server))
        shown = [sample.labels for sample in _shown(server.url) if sample.name == GPU_PROCESS_MEMORY.name]
    run.close()
    named = {labels["pid"]: (labels["run"], labels["rank"]) for labels in shown}
    assert named == {str(os.getpid()): (run.id, "0"), "1": ("", "")}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_watched", [True, False], ids=["beside a watched node", "alone"])
def test_logs_that_hang_hold_up_neither_scrapes_nor_the_watch_nor_the_end(
    tmp_path: Path, url: str, is_watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(small_case(), make_machine(), tmp_path / "runs")
    answers = threading.Event()

    def machine_of(folder: Path) -> Machine:
        answers.wait()  # As a network file system that is gone: who opens a file waits. A pipe would be refused.
        return run_dir.machine_of(folder)

    monkeypatch.setattr("bench.serve.live.runs.machine_of", machine_of)
    watched, notices = FakeCollector(), Notices()
    late = "runs: reading their logs sometimes takes more than 1 s; the last reading is shown meanwhile"
    node = NodePlan(polling=PollingConfig(beat_s=0.1), opener=lambda polling: [watched]) if is_watched else None
    with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=notices, node=node) as server:
        wait_until(lambda: RUN_STEP_SECONDS.statistic("median").name in _names(server) and late in notices)
        reads = watched.reads
        wait_until(lambda: not is_watched or watched.reads > reads)
    answers.set()  # Lets the thread go.
    ended("runs")
    run.close()


def test_the_run_on_a_gpu_is_told_to_dcgm_exporter_until_it_ends(tmp_path: Path, url: str) -> None:
    run = _begin_here(tmp_path / "runs")
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    with closing(JobMapping(jobs)) as mapping:
        node = NodePlan(polling=PollingConfig(beat_s=0.1), opener=lambda polling: [FakeGpus()], mapping=mapping)
        with open_server(tmp_path / "runs", url, host="127.0.0.1", port=0, on_notice=Notices(), node=node):
            wait_until((jobs / "3").exists)
            told = (jobs / "3").read_text()
            run.close()
            wait_until(lambda: not (jobs / "3").exists())
    assert told == f"{run.id}\n"


def test_the_demonstration_says_what_it_is_and_shows_gpus_and_a_run() -> None:
    notices = Notices()
    with open_demonstration(host="127.0.0.1", port=0, polling=PollingConfig(beat_s=60), on_notice=notices) as server:
        wait_until(lambda: GPU_STATE.name in _names(server))
        assert RUN_STEP_SECONDS.statistic("median").name in _names(server)
        runs = {sample.labels["run"] for sample in _shown(server.url) if sample.name == RUN_INFO.name}
    assert runs == {"demonstration"}
    assert notices[:2] == [f"serving {server.url}", NOTICE]
