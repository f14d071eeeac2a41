"""Where ranks meet, in a process that has torch, so that the agent has none."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.engines.node import node_store
from bench.engines.node.node_store import NodeStore
from bench.machine.machine import read

CONTEXT = multiprocessing.get_context("forkserver")
HOST = "127.0.0.1"


def test_ranks_meet_there_until_it_is_closed() -> None:
    store = NodeStore(CONTEXT, HOST)
    try:
        one, other = (TCPStore(HOST, store.port, is_master=False, timeout=timedelta(seconds=30)) for _ in range(2))
        one.set("a key", "a value")
        assert other.get("a key") == b"a value"
    finally:
        store.close()
    with pytest.raises(RuntimeError):
        TCPStore(HOST, store.port, is_master=False, timeout=timedelta(seconds=1))
    assert not multiprocessing.active_children()


def test_it_tells_the_machine_with_torch() -> None:
    store = NodeStore(CONTEXT, HOST)
    store.close()
    assert store.machine.torch_version == read().torch_version is not None


def test_why_it_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="does not start ranks: its first process ended with 1"):
        NodeStore(CONTEXT, "999.1.1.1")  # Where nothing can listen.
    monkeypatch.setattr(node_store, "import_module", fail_to_load)
    with pytest.raises(OSError, match=r"libtorch\.so: cannot open"):
        NodeStore(CONTEXT, "999.1.1.1")


def fail_to_load(name: str) -> None:
    raise OSError(f"{name}: libtorch.so: cannot open shared object file")


def test_an_agent_loads_no_torch() -> None:
    code = "import sys; import bench.engines.node.agent; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout == "False\n"
