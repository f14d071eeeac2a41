"""The registry of limits of a node that can stop ranks: how to read each, what happens without it, and what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.machine.limits import network_names, process_limits, shared_memory
from bench.machine.limits.demand import Demand, Reading

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit. read: compares its value here with a demand; None if there is nothing to judge.

    why: what happens if it is too small. next_step: how to raise it.
    """

    name: str
    read: Callable[[Demand, Environment, Path], Reading | None]
    why: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitVerdict:
    """A limit on this node. needed: what ranks need, in words; None if they need nothing."""

    name: str
    value: str
    needed: str | None
    is_enough: bool
    why: str
    next_step: str

    @property
    def text(self) -> str:
        """The value; if it is not enough, also what ranks need, why, and the next step."""
        if self.is_enough:
            return self.value
        return f"{self.value}, but needed: {self.needed}; {self.why}; {self.next_step}"

    @property
    def line(self) -> str:
        """The name and the text."""
        return f"{self.name}: {self.text}"


_SHM = "docker run --shm-size=1g, in Kubernetes an emptyDir of medium Memory at /dev/shm"
_ULIMITS = "in a systemd unit {unit}=, in Slurm PropagateResourceLimits=NONE or the limit of slurmd"
_NO_SUCH_DEVICE = "correct it, or give the container the network's devices"

LIMITS: Sequence[Limit] = (
    Limit(
        name="/dev/shm",
        read=shared_memory.read,
        why='NCCL ends there with "unhandled system error", a data loader with "unable to allocate shared memory"',
        next_step=f"{_SHM}; on a host `mount -o remount,size=1g /dev/shm`",
    ),
    Limit(
        name="locked memory (memlock)",
        read=process_limits.locked_memory,
        why='InfiniBand locks the memory that it sends, and NCCL ends with "Call to ibv_reg_mr failed"',
        next_step=f"`ulimit -l unlimited`, docker run --ulimit memlock=-1, {_ULIMITS.format(unit='LimitMEMLOCK')}",
    ),
    Limit(
        name="open files (nofile)",
        read=process_limits.open_files,
        why="each rank opens a connection to each other rank in each process group",
        next_step=f"`ulimit -n 65536`, docker run --ulimit nofile=65536, {_ULIMITS.format(unit='LimitNOFILE')}",
    ),
    Limit(
        name="processes and threads (nproc)",
        read=process_limits.processes,
        why="a rank that cannot start a thread ends",
        next_step=f"`ulimit -u unlimited`, docker run --ulimit nproc=-1, {_ULIMITS.format(unit='LimitNPROC')}",
    ),
    Limit(
        name="stack",
        read=process_limits.stack,
        why="threads get stacks of this size, and threads of torch overflow smaller stacks",
        next_step=f"`ulimit -s 8192`, docker run --ulimit stack=8388608, {_ULIMITS.format(unit='LimitSTACK')}",
    ),
    Limit(
        name="address space (as)",
        read=process_limits.address_space,
        why="CUDA reserves addresses for all memory of the node and its GPUs, and otherwise does not start",
        next_step=f"`ulimit -v unlimited`, {_ULIMITS.format(unit='LimitAS')}",
    ),
    Limit(
        name="core files (core)",
        read=process_limits.core_files,
        why="a rank that is killed writes all its memory to a file",
        next_step="`ulimit -c 0`",
    ),
    Limit(
        name="tasks of the control group (pids)",
        read=process_limits.group_tasks,
        why="a rank that cannot start a thread ends",
        next_step="docker run --pids-limit=-1, in Kubernetes the kubelet's podPidsLimit, in systemd TasksMax=",
    ),
    Limit(
        name="memory of the control group",
        read=process_limits.group_memory,
        why="the kernel kills a rank with SIGKILL; /dev/shm counts as memory of the group",
        next_step="docker run --memory, in Kubernetes resources.limits.memory, in Slurm --mem=0",
    ),
    Limit(
        name="NCCL_IB_HCA",
        read=network_names.nccl_hca,
        why="NCCL uses only devices of these names, and sends by TCP if it finds none",
        next_step=f"{_NO_SUCH_DEVICE} (docker run --device /dev/infiniband)",
    ),
    Limit(
        name="NCCL_IB_GID_INDEX",
        read=network_names.gid_index,
        why='a connection by RoCE fails with "Call to ibv_modify_qp failed"',
        next_step="unset it: NCCL then finds the index",
    ),
    Limit(
        name="NCCL_SOCKET_IFNAME",
        read=network_names.nccl_interface,
        why='NCCL ends with "no socket interface found"',
        next_step=f"{_NO_SUCH_DEVICE} (docker run --network host)",
    ),
    Limit(
        name="NCCL_OOB_NET_IFNAME",
        read=network_names.nccl_oob_interface,
        why='NCCL ends with "no device found matching"',
        next_step=f"{_NO_SUCH_DEVICE} (docker run --network host)",
    ),
    Limit(
        name="GLOO_SOCKET_IFNAME",
        read=network_names.gloo_interface,
        why='gloo ends with "Unable to find address for"',
        next_step=f"{_NO_SUCH_DEVICE} (docker run --network host)",
    ),
    Limit(
        name="TP_SOCKET_IFNAME",
        read=network_names.rpc_interface,
        why="messages of the parameter server use the address of the host's name instead",
        next_step=f"{_NO_SUCH_DEVICE} (docker run --network host)",
    ),
    Limit(
        name="UCX_NET_DEVICES",
        read=network_names.ucx_devices,
        why="UCX finds no device to send with",
        next_step=f"{_NO_SUCH_DEVICE} (docker run --device /dev/infiniband)",
    ),
)


def judge(demand: Demand, environment: Environment = os.environ, root: Path = Path("/")) -> tuple[LimitVerdict, ...]:
    """Return the limits of this process and its node, as ranks that it starts would have them.

    root: where /dev, /proc and /sys are.
    """
    return tuple(_verdicts(demand, environment, root))


def too_small(demand: Demand, environment: Environment = os.environ, root: Path = Path("/")) -> list[str]:
    """Return a line for each limit that is not enough for the demand."""
    return [verdict.line for verdict in _verdicts(demand, environment, root) if not verdict.is_enough]


def _verdicts(demand: Demand, environment: Environment, root: Path) -> Iterator[LimitVerdict]:
    for limit in LIMITS:
        reading = limit.read(demand, environment, root)
        if reading is not None:
            yield LimitVerdict(
                name=limit.name,
                value=reading.value,
                needed=reading.needed,
                is_enough=reading.is_enough,
                why=limit.why,
                next_step=limit.next_step,
            )
