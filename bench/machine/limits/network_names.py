"""Compares the network devices that variables of NCCL, gloo, torch's RPC and UCX name with the node's devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bench.machine.limits.demand import Demand, Reading

Environment = Mapping[str, str]
INTERFACES, INFINIBAND = "sys/class/net", "sys/class/infiniband"


def nccl_hca(_demand: Demand, environment: Environment, root: Path) -> Reading | None:
    """Compare NCCL_IB_HCA with the InfiniBand and RoCE devices; NAME:PORT names one port."""
    return _read(environment, "NCCL_IB_HCA", {INFINIBAND: _names(root, INFINIBAND)}, _unmatched_by_nccl)


def nccl_interface(_demand: Demand, environment: Environment, root: Path) -> Reading | None:
    """Compare NCCL_SOCKET_IFNAME with the network interfaces."""
    return _read(environment, "NCCL_SOCKET_IFNAME", {INTERFACES: _names(root, INTERFACES)}, _unmatched_by_nccl)


def nccl_oob_interface(_demand: Demand, environment: Environment, root: Path) -> Reading | None:
    """Compare NCCL_OOB_NET_IFNAME, the interface over which ranks meet, with the network interfaces."""
    return _read(environment, "NCCL_OOB_NET_IFNAME", {INTERFACES: _names(root, INTERFACES)}, _unmatched_by_nccl)


def gloo_interface(_demand: Demand, environment: Environment, root: Path) -> Reading | None:
    """Compare GLOO_SOCKET_IFNAME, a list of whole names, with the network interfaces."""
    return _read(environment, "GLOO_SOCKET_IFNAME", {INTERFACES: _names(root, INTERFACES)}, _unmatched)


def rpc_interface(_demand: Demand, environment: Environment, root: Path) -> Reading | None:
    """Compare TP_SOCKET_IFNAME, a variable of torch's TensorPipe, with the network interfaces."""
    return _read(environment, "TP_SOCKET_IFNAME", {INTERFACES: _names(root, INTERFACES)}, _unmatched)


def ucx_devices(_demand: Demand, environment: Environment, root: Path) -> Reading | None:
    """Compare UCX_NET_DEVICES, NAME:PORT or interfaces, with the node's devices; "all" means every device."""
    folders = {folder: _names(root, folder) for folder in (INFINIBAND, INTERFACES)}
    return _read(environment, "UCX_NET_DEVICES", folders, _unmatched_by_ucx)


def gid_index(_demand: Demand, environment: Environment, root: Path) -> Reading | None:
    """Compare NCCL_IB_GID_INDEX with the addresses (GIDs) of the ports; -1 lets NCCL choose."""
    value = environment.get("NCCL_IB_GID_INDEX", "")
    if not value.isdecimal():
        return None
    files = sorted((root / INFINIBAND).glob(f"*/ports/*/gids/{value}"))
    ports = sorted((root / INFINIBAND).glob("*/ports/*"))
    used = {file.parents[1] for file in files if re.search("[1-9a-f]", _text(file))}  # An unused GID is all zeros.
    bare = [f"{port.parents[1].name}:{port.name}" for port in ports if port not in used]
    if not bare:
        return Reading(value=value)
    return Reading(value=value, needed=f"a GID of this index on {', '.join(bare)}", is_enough=False)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # The kernel refuses to read an index without a GID.
        return ""


def _names(root: Path, folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in (root / folder).glob("*") if path.name != "bonding_masters"))


def _read(
    environment: Environment,
    variable: str,
    folders: Mapping[str, Sequence[str]],
    unmatched: Callable[[str, Sequence[str]], list[str]],
) -> Reading | None:
    value = environment.get(variable)
    if not value:
        return None
    names = [name for folder_names in folders.values() for name in folder_names]
    if not (missing := unmatched(value, names)):
        return Reading(value=value)
    there = "; ".join(f"/{folder} has {', '.join(devices) or 'none'}" for folder, devices in folders.items())
    return Reading(value=value, needed=f"a device for {', '.join(missing)} ({there})", is_enough=False)


def _unmatched(value: str, names: Iterable[str]) -> list[str]:
    known = set(names)
    return [entry for entry in _entries(value) if entry not in known]


def _unmatched_by_nccl(value: str, names: Sequence[str]) -> list[str]:
    """Return the entries that match no device, as NCCL compares them.

    Entries are beginnings of names, or whole names after "=". After "^" they are left out, and a device must remain.
    Source: NCCL 2.30.7, parseStringList and matchIf (misc/utils.cc), which net_ib/init.cc and misc/socket.cc call.
    """
    is_left_out = value.startswith("^")
    value = value.removeprefix("^")
    is_exact = value.startswith("=")
    entries = [entry.partition(":")[0] for entry in _entries(value.removeprefix("="))]

    def matches(entry: str) -> list[str]:
        return [name for name in names if name == entry or (not is_exact and name.startswith(entry))]

    if is_left_out:
        left_out = {name for entry in entries for name in matches(entry)}
        return [] if set(names) - left_out else [f"anything but {', '.join(entries)}"]
    return [entry for entry in entries if not matches(entry)]


def _unmatched_by_ucx(value: str, names: Sequence[str]) -> list[str]:
    if value == "all" or value.startswith("^"):
        return []
    return _unmatched(",".join(entry.partition(":")[0] for entry in _entries(value)), names)


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",") if entry.strip()]
