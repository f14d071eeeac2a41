"""Network devices that NCCL, gloo, torch and UCX are told to use, against /sys/class of this machine and of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.machine.limits.demand import Demand
from bench.machine.limits.registry import too_small
from tests.bench.machine.limits.namespaces import run_with_mounts

NODE = Demand(ranks=1, world=1, is_on_gpus=False, uses_nccl=False)
CHECK = """
import os
from bench.machine.limits.demand import Demand
from bench.machine.limits.registry import too_small
print(*too_small(Demand(ranks=1, world=1, is_on_gpus=False, uses_nccl=False)), sep="\\n")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with two InfiniBand devices, a RoCE device with GIDs 0 and 3, and three interfaces."""
    for name in ("mlx5_0", "mlx5_10", "rocep1s0"):
        (tmp_path / "sys/class/infiniband" / name / "ports/1/gids").mkdir(parents=True)
        for index in range(5):
            gid = "fe80:0000:0000:0000:ec0d:9a03:0012:3456" if index in (0, 3) else ":".join(["0000"] * 8)
            (tmp_path / "sys/class/infiniband" / name / f"ports/1/gids/{index}").write_text(f"{gid}\n")
    for name in ("lo", "eth0", "ib0", "bonding_masters"):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
    return tmp_path


def _said(variable: str, value: str, root: Path) -> str:
    lines = [line for line in too_small(NODE, {variable: value}, root) if line.startswith(variable)]
    return lines[0] if lines else ""


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NCCL_IB_HCA", "mlx5"),
        ("NCCL_IB_HCA", "=mlx5_0:1,rocep1s0:1"),
        ("NCCL_IB_HCA", "^mlx5_0"),
        ("NCCL_IB_HCA", "mlx5_0:1:0:2"),
        ("NCCL_IB_HCA", ""),
        ("NCCL_SOCKET_IFNAME", "eth,ib"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0"),
        ("TP_SOCKET_IFNAME", "ib0"),
        ("UCX_NET_DEVICES", "all"),
        ("UCX_NET_DEVICES", "mlx5_0:1,eth0"),
        ("NCCL_IB_GID_INDEX", "3"),
        ("NCCL_IB_GID_INDEX", "-1"),
    ],
)
def test_names_that_the_node_has_are_fine(variable: str, value: str, root: Path) -> None:
    assert _said(variable, value, root) == ""


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("NCCL_IB_HCA", "mlx4_0", "a device for mlx4_0 (/sys/class/infiniband has mlx5_0, mlx5_10, rocep1s0)"),
        ("NCCL_IB_HCA", "=mlx5_1", "a device for mlx5_1 ("),
        ("NCCL_IB_HCA", "mlx5_0,mlx9", "a device for mlx9 ("),
        ("NCCL_IB_HCA", "^mlx5,roce", "a device for anything but mlx5, roce ("),
        ("NCCL_SOCKET_IFNAME", "bond0", "a device for bond0 (/sys/class/net has eth0, ib0, lo); NCCL ends with"),
        ("NCCL_OOB_NET_IFNAME", "=eth", "a device for eth ("),
        ("GLOO_SOCKET_IFNAME", "eth", "a device for eth (/sys/class/net has eth0, ib0, lo); gloo ends with"),
        ("TP_SOCKET_IFNAME", "ens1", "a device for ens1 ("),
        ("UCX_NET_DEVICES", "mlx5_0:1,ens1", "a device for ens1 ("),
        ("NCCL_IB_GID_INDEX", "2", "a GID of this index on mlx5_0:1, mlx5_10:1, rocep1s0:1; a connection by RoCE"),
    ],
)
def test_a_name_that_the_node_lacks_is_named_with_those_it_has(
    variable: str, value: str, said: str, root: Path
) -> None:
    line = _said(variable, value, root)
    assert line.startswith(f"{variable}: {value}, but needed: {said}")


def test_a_machine_without_infiniband_says_so_where_a_variable_names_a_device(tmp_path: Path) -> None:
    mounts = "mount -t tmpfs tmpfs /sys/class\nexport NCCL_IB_HCA=mlx5_0 GLOO_SOCKET_IFNAME=eth7"
    done = run_with_mounts(mounts, "-c", CHECK)
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "NCCL_IB_HCA: mlx5_0, but needed: a device for mlx5_0 (/sys/class/infiniband has none); NCCL uses only devices"
        " of these names, and sends by TCP if it finds none; correct it, or give the container the network's devices"
        " (docker run --device /dev/infiniband)"
    )
    assert lines[1].startswith("GLOO_SOCKET_IFNAME: eth7, but needed: a device for eth7 (/sys/class/net has none)")
