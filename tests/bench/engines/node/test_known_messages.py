"""Known messages are explained: real texts of torch, gloo and the kernel, and lines of the libraries' sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.engines.node.known_messages import (
    KnownMessage,
    explain,
    explain_xids,
    facts_of_node,
    owner_words,
    read_table,
)
from bench.engines.root_cause import RankEnd, root_cause
from bench.machine.gpus import read_gpus
from bench.report.run.summary import cause_lines
from collectors.metrics.gpu_health import GPU_EVENT_TIME, GPU_XID_TIME
from collectors.sample_log import Ended
from dashboards.thresholds import shipped
from tests.bench.machine.limits.namespaces import SMALL_SHM, run_with_mounts
from tests.bench.made.examples import make_summary
from tests.bench.made.recorded_nvml import RecordedNvml, RecordedProcess

MESSAGES = read_table().messages
LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset

class Large(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(20 << 20)  # 80 MiB.

for _ in DataLoader(Large(), batch_size=1, num_workers=1):
    pass
"""
NETWORK = """
import os
import resource
import socket
from datetime import timedelta
import torch
import torch.distributed as dist

def printed(attempt):
    try:
        attempt()
    except Exception as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0])

store = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=5))
printed(lambda: dist.TCPStore("127.0.0.1", store.port, 1, True, timedelta(seconds=5)))
os.environ["GLOO_SOCKET_IFNAME"] = "eth7"
printed(lambda: dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1))
printed(lambda: socket.create_server(("192.0.2.1", 0)))
printed(lambda: torch.empty(1 << 50, dtype=torch.uint8))
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
printed(lambda: [socket.socket() for _ in range(100)])
"""


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.means[:40])
def test_an_entry_is_found_by_its_example_and_by_no_other_s(message: KnownMessage) -> None:
    fitting = [other for other in MESSAGES if re.search(other.pattern, message.example)]
    specific = [other for other in fitting if not other.is_general] or fitting
    assert specific == [message]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.means[:40])
def test_an_entry_is_whole_sentences_and_names_its_source(message: KnownMessage) -> None:
    for text in (message.means, message.cause, message.next):
        assert text
        assert not text.endswith((".", ";"))
        assert "\n" not in text
    assert len(message.source) > 10
    assert set(message.facts) <= set(facts_of_node(()))


def test_the_general_entries_come_last_so_that_a_reader_finds_the_cause_first() -> None:
    is_general = [message.is_general for message in MESSAGES]
    assert is_general == sorted(is_general)


@pytest.mark.slow
def test_a_real_loader_in_64_mb_of_shared_memory_is_explained() -> None:
    done = run_with_mounts(SMALL_SHM, "-c", LOADER)
    assert done.returncode != 0
    (line,) = explain(done.stderr, done.returncode, {"shared_memory": lambda: "/dev/shm here: 64 MiB"})
    assert line == (
        "a process found no room in /dev/shm, where data loaders hand over batches: a container has 64 MB of it by"
        " default; start it with docker run --shm-size=1g, or in Kubernetes with an emptyDir of medium Memory at"
        " /dev/shm; or use fewer --option workers; /dev/shm here: 64 MiB"
    )


@pytest.mark.slow
def test_real_errors_of_the_network_memory_and_files_are_explained() -> None:
    done = subprocess.run([sys.executable, "-c", NETWORK], capture_output=True, text=True, check=True)
    printed = done.stdout.splitlines()
    meanings = [explain(line, None, {})[0].partition(":")[0] for line in printed]
    assert meanings == [
        "another process listens on the port where ranks should meet",
        "gloo finds no address of the network interface",
        "the address does not belong to this node",
        "the host has no memory for a tensor",
        "the rank may open no more files",
    ]


def test_a_rank_that_a_bus_error_killed_is_explained_by_its_end_alone() -> None:
    (line,) = explain("", -7, facts_of_node(()))
    assert line.startswith("a process found no room in /dev/shm")
    assert re.search(r"/dev/shm here: \S+ \wiB, \S+ \w+ free$", line)
    assert explain("", -9, {}) == explain("", 1, {}) == explain("all is well", 0, {}) == ()


def test_a_general_message_is_explained_only_where_nothing_says_more() -> None:
    general = "DistBackendError: NCCL error, unhandled system error (run with NCCL_DEBUG=INFO for details)"
    (line,) = explain(general, 1, {})
    assert line.startswith("a call of NCCL to the operating system failed")
    specific = "NCCL WARN Error: failed to extend /dev/shm/nccl-Ab1 to 9637892 bytes, error: No space left on device"
    (line,) = explain(f"{specific}\n{general}", 1, {})
    assert line.startswith("NCCL found no room in /dev/shm")


def test_a_full_gpu_is_explained_beside_the_processes_that_hold_it() -> None:
    nvml = RecordedNvml(names=("A", "B"), processes={1: (RecordedProcess(4711, 12_000_000_000),)})
    facts = facts_of_node(read_gpus(nvml, {}).gpus, nvml)
    (line,) = explain("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", 1, facts)
    assert line.startswith("the GPU's memory is full: the case needs more, or other processes hold a part; use ")
    assert line.endswith("; GPU 1: process 4711 holds 12.0 GB")


def test_a_holder_is_named_by_process_container_and_job() -> None:
    assert owner_words(2**22 + 1) is None
    words = owner_words(os.getpid())
    assert words is None or Path(f"/proc/{os.getpid()}/comm").read_text().strip() in words


def test_xids_of_the_trial_are_explained_with_the_gpu() -> None:
    samples = [
        GPU_XID_TIME.at(100.0, gpu="3", slice="", xid="79"),
        GPU_XID_TIME.at(50.0, gpu="4", slice="", xid="48"),
        GPU_XID_TIME.at(101.0, gpu="5", slice="", xid="999"),
        GPU_EVENT_TIME.at(101.0, gpu="5", event="xid"),
    ]
    assert explain_xids(samples, 99.0) == (
        "GPU 3 reported XID 79: the GPU has fallen off the bus; drain the node and power it off and on",
        "GPU 5 reported XID 999: see NVIDIA's catalogue, https://docs.nvidia.com/deploy/xid-errors",
    )


def test_an_xid_in_the_kernel_s_words_is_explained() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert explain(line, None, {}) == (
        "the GPU at 0000:3b:00 reported XID 79: the GPU has fallen off the bus; drain the node and power it off and on",
    )


def test_every_xid_of_the_alerts_has_a_meaning() -> None:
    gpus = shipped().gpus
    assert {str(number) for number in (*gpus.application_xids, *gpus.node_xids)} <= set(read_table().xids)


def test_the_meaning_goes_with_the_blamed_rank_into_the_report() -> None:
    end = RankEnd(
        rank=1,
        result=Ended(trial=0, time_ns=0, step=4, error_type="RuntimeError", error="it failed"),
        exit_code=1,
        ended_ns=1,
        step=4,
        output="last words",
        explained=("what it means: why; what to do",),
    )
    cause = root_cause((end,), "runs/x", 60.0)
    assert cause is not None
    lines = cause_lines(make_summary(outcome="failed", cause=cause))
    assert lines[1:] == ["    last words", "    meaning: what it means: why; what to do"]


@pytest.mark.slow
def test_a_run_whose_loaders_find_no_shared_memory_says_why_it_hung(tmp_path: Path) -> None:
    """A worker prints the error and goes on, so that its rank waits until the limit."""
    words = ("run", "ddp", "--ranks", "2", "--device", "cpu", "--batch", "256", "--steps", "3", "--trials", "1")
    more = ("--trace-steps", "0", "--limit", "20", "--runs", str(tmp_path / "runs"))
    done = run_with_mounts(
        "mount -t tmpfs -o size=128k tmpfs /dev/shm",
        "-m",
        "bench",
        *words,
        *more,
        "--store",
        f"sqlite:///{tmp_path}/store",
    )
    assert done.returncode == 3, done.stderr
    printed = done.stdout + done.stderr
    assert "/dev/shm: 128 KiB, 128 KiB free, but needed: 774 KiB for 2 ranks (774 KiB by data loaders)" in printed
    assert "meaning: a process found no room in /dev/shm, where data loaders hand over batches" in printed
    assert "/dev/shm here: 128 KiB, " in printed
