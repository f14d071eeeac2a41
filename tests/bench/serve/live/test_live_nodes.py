"""What runs say of their nodes is shown where nobody else watches them, and ranks are joined to their GPUs."""

import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from bench.serve.gpu_placement import Place
from bench.serve.live.runs import RunLogs, Shown
from bench.store.run_dir import Run, begin
from collectors.metrics.agent import RANK_INFO
from collectors.metrics.gpu import GPU_PROCESS_MEMORY, RANK_GPU, RANK_GPU_MEMORY
from collectors.metrics.host import HOST_LOAD, HOST_NETWORK_BYTES
from collectors.metrics.metric import Metric, Sample
from collectors.sample_log import NodeLogWriter, Opened, SampleLog, open_node_log
from tests.bench.made.examples import make_machine, small_case


@pytest.fixture
def live(tmp_path: Path) -> RunLogs:
    return RunLogs(tmp_path, on_notice=pytest.fail)


def _open(run: Run, rank: int = 0, *, pid: int = 1, host: str = "node0") -> None:
    log = SampleLog(run.folder / f"rank{rank}.jsonl")
    log.write(Opened(run=run.id, trial=0, rank=rank, time_ns=0, pid=pid, host=host))
    log.close()


def _poll(path: Path, *beats: Sequence[Sample]) -> None:
    log = SampleLog(path)
    writer = NodeLogWriter(log)
    for time_ns, samples in enumerate(beats):
        writer.write(list(samples), time_ns=time_ns)
    log.close()


def _values(live: RunLogs, metric: Metric) -> Sequence[tuple[float, dict[str, str]]]:
    return [(sample.value, {**sample.labels, **owner}) for sample, owner in live.read() if sample.metric == metric.name]


def test_of_a_node_whose_log_holds_changes_the_last_beat_is_shown_whole(tmp_path: Path, live: RunLogs) -> None:
    log = begin(small_case(), make_machine(), tmp_path).folder / "node0.jsonl"
    sent = [HOST_NETWORK_BYTES.at(value, interface="eth0", direction="sent") for value in (10, 20)]
    _poll(log, [HOST_LOAD.at(1), sent[0]], [HOST_LOAD.at(1), sent[1]])
    assert live.read()[-2:] == [(HOST_LOAD.at(1), {}), (sent[1], {})]
    _poll(log, [HOST_LOAD.at(2)], [HOST_LOAD.at(3)])
    assert live.read()[-1:] == [(HOST_LOAD.at(3), {})]
    assert _values(live, HOST_NETWORK_BYTES) == []


def test_where_somebody_else_watches_the_node_its_logs_are_not_shown(tmp_path: Path) -> None:
    live = RunLogs(tmp_path, on_notice=pytest.fail, shown=Shown(has_nodes=False))
    run = begin(small_case(), make_machine(), tmp_path)
    _open(run)
    _poll(run.folder / "node0.jsonl", [HOST_LOAD.at(1)])
    assert _values(live, HOST_LOAD) == []
    assert [value for value, _ in _values(live, RANK_INFO)] == [1]


def test_a_rank_is_joined_to_the_gpus_that_it_computes_on(tmp_path: Path) -> None:
    places = (Place(gpu="2", memory_bytes=9), Place(gpu="7", slice="1/0"))
    live = RunLogs(tmp_path, on_notice=pytest.fail, places_of=lambda opened: places if opened.rank == 1 else ())
    run = begin(small_case(), make_machine(), tmp_path)
    for rank in range(2):
        _open(run, rank)
    owner = {"rank": "1", "slot": "0"}
    assert _values(live, RANK_GPU) == [
        (1, {**owner, "run": run.id, "gpu": "2", "slice": ""}),
        (1, {**owner, "run": run.id, "gpu": "7", "slice": "1/0"}),
    ]
    assert _values(live, RANK_GPU_MEMORY) == [(9, {**owner, "gpu": "2", "slice": ""})]


def _process(pid: int, memory_bytes: int) -> Sample:
    names = ("slice", "process", "run", "rank", "container_id", "pod_uid", "slurm_job")
    return GPU_PROCESS_MEMORY.at(memory_bytes, gpu="0", pid=str(pid), **dict.fromkeys(names, ""))


def test_a_process_in_a_nodes_log_is_named_by_the_rank_that_it_is(tmp_path: Path, live: RunLogs) -> None:
    run = begin(small_case(ranks=3), make_machine(), tmp_path)
    _open(run, 0, pid=70, host="another")  # That node counts its processes otherwise.
    _open(run, 1, pid=71, host=socket.gethostname())
    with closing(open_node_log(run.folder / "node0.jsonl", run=run.id, node=0)) as log:
        NodeLogWriter(log).write([_process(70, 5), _process(71, 6)], time_ns=1)
    found = _values(live, GPU_PROCESS_MEMORY)
    assert [(value, labels["run"], labels["rank"]) for value, labels in found] == [(5, "", ""), (6, run.id, "1")]
