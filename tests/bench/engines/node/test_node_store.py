"""Processes of an agent that have torch: one reads the machine, another holds the store of a trial."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from datetime import timedelta
from typing import cast

import psutil
import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.engines.node import node_store
from bench.engines.node.node_store import TrialStore, read_machine
from bench.machine.machine import read
from bench.rank.messages import GROUPS_MADE

CONTEXT = multiprocessing.get_context("forkserver")
HOST = "127.0.0.1"
SOON = timedelta(seconds=30)


def addresses(port: int) -> set[str]:
    """Addresses at which somebody listens at this port."""
    listening = [each.laddr for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return {address.ip for address in listening if address and address.port == port}


def test_ranks_meet_in_a_store_until_it_is_closed() -> None:
    store = TrialStore(CONTEXT, HOST, "p", ranks=2)
    try:
        one, other = (TCPStore(HOST, store.port, is_master=False, timeout=SOON) for _ in range(2))
        one.set("a key", "a value")
        assert other.get("a key") == b"a value"
    finally:
        store.close()
    with pytest.raises(RuntimeError):
        TCPStore(HOST, store.port, is_master=False, timeout=timedelta(seconds=1))
    assert not multiprocessing.active_children()


def test_a_store_stops_listening_when_all_ranks_have_made_their_groups() -> None:
    store = TrialStore(CONTEXT, HOST, "p", ranks=2)
    try:
        ranks = [PrefixStore("p", TCPStore(HOST, store.port, is_master=False, timeout=SOON)) for _ in range(2)]
        ranks[0].add(GROUPS_MADE, 1)
        ranks[1].set("still", "answers")
        assert addresses(store.port) == {HOST}
        ranks[1].add(GROUPS_MADE, 1)
        until_s = time.monotonic() + SOON.total_seconds()
        while addresses(store.port):
            assert time.monotonic() < until_s
            time.sleep(0.01)
    finally:
        store.close()


def test_a_store_listens_at_its_own_address_alone() -> None:
    store = TrialStore(CONTEXT, "127.0.0.2", "p", ranks=1)
    try:
        assert addresses(store.port) == {"127.0.0.2"}
    finally:
        store.close()


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"the ranks' store cannot be opened: cannot listen at 192\.0\.2\.1"):
        TrialStore(CONTEXT, "192.0.2.1", "p", ranks=1)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_the_machine_is_read_with_torch() -> None:
    assert read_machine(CONTEXT).torch_version == read().torch_version is not None


@pytest.mark.slow
def test_why_no_process_starts_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="does not start ranks: its first process ended with 1"):
        TrialStore(CONTEXT, cast(str, 5), "p", ranks=1)
    monkeypatch.setattr(node_store, "import_module", fail_to_load)
    with pytest.raises(OSError, match=r"libtorch\.so: cannot open"):
        TrialStore(CONTEXT, cast(str, 5), "p", ranks=1)


def fail_to_load(name: str) -> None:
    raise OSError(f"{name}: libtorch.so: cannot open shared object file")


def test_an_agent_loads_no_torch() -> None:
    code = "import sys; import bench.engines.node.agent; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout == "False\n"
