"""Explains known messages of NCCL, CUDA, gloo and torch with the meaning, cause and next step in a TOML table."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from bench.errors import open_limit_words
from bench.machine.gpus import Gpu, Nvml, read_memory
from bench.machine.limits import process_limits, shared_memory
from bench.machine.limits.demand import demand_of_gpus
from bench.machine.preflight import holders_text
from collectors.host.process_owner import read_owner
from collectors.metrics.gpu_health import GPU_XID_TIME
from collectors.metrics.metric import Sample
from collectors.nvml.queries import names_all_processes

MOST_LINES = 3
"""How many messages of a rank are explained."""
TABLE = Path(__file__).with_suffix(".toml")
# As the kernel logs it: "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
_XID_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:.]+)\): (\d+)")


class KnownMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of known_messages.toml, which explains the keys."""

    pattern: str
    example: str
    means: str
    cause: str
    next: str
    source: str
    facts: tuple[str, ...] = ()
    is_general: bool = False

    def text(self, facts: Mapping[str, Callable[[], str]]) -> str:
        """Return the explanation in one line, with the node's facts."""
        of_node = [facts[name]() for name in self.facts if name in facts]
        return "; ".join([f"{self.means}: {self.cause}", self.next, *filter(None, of_node)])


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of known_messages.toml. xids: what each number means, with the next step."""

    messages: tuple[KnownMessage, ...]
    xids: dict[str, str]


@cache
def read_table() -> Table:
    return msgspec.toml.decode(TABLE.read_bytes(), type=Table)


def explain(text: str, exit_code: int | None, facts: Mapping[str, Callable[[], str]]) -> tuple[str, ...]:
    """Return what the messages in a rank's output mean, one line each; none if no message is known.

    exit_code: minus the number of the signal that killed the rank. facts: the node's facts, by the table's names.
    """
    if exit_code is not None and exit_code < 0:
        text += f"\nkilled by {signal.Signals(-exit_code).name}"
    fitting = [message for message in read_table().messages if re.search(message.pattern, text)]
    specific = [message for message in fitting if not message.is_general]
    lines = [message.text(facts) for message in (specific or fitting)[:MOST_LINES]]
    numbers = {(f"the GPU at {place}", number) for place, number in _XID_LINE.findall(text)}
    return (*lines, *(_xid(gpu, number) for gpu, number in sorted(numbers)))


def explain_xids(samples: Iterable[Sample], since_s: float) -> tuple[str, ...]:
    """Return a line for each XID that the node's collector has seen since this Unix time."""
    recent = [sample for sample in samples if sample.metric == GPU_XID_TIME.name and sample.value >= since_s]
    return tuple(_xid(f"GPU {sample.labels['gpu']}", sample.labels["xid"]) for sample in recent)


def _xid(gpu: str, number: str) -> str:
    meaning = read_table().xids.get(number, "see NVIDIA's catalogue, https://docs.nvidia.com/deploy/xid-errors")
    return f"{gpu} reported XID {number}: {meaning}"


def facts_of_node(gpus: Sequence[Gpu], nvml: Nvml | None = None) -> dict[str, Callable[[], str]]:
    """Return the facts that this node can add to an explanation; each is read when it is called."""
    return {
        "shared_memory": _shared_memory,
        "open_files": open_limit_words,
        "locked_memory": lambda: (
            f"memlock here: {process_limits.locked_memory(demand_of_gpus(0), {}, Path('/')).value}"
        ),
        "gpu_holders": lambda: _holders(gpus, nvml),
    }


def _shared_memory() -> str:
    memory = shared_memory.find()
    return "/dev/shm is missing here" if memory is None else f"/dev/shm here: {shared_memory.words(memory)}"


def _holders(gpus: Sequence[Gpu], nvml: Nvml | None) -> str:
    """Return which processes hold the GPUs now; the failed rank is usually gone."""
    lines = [
        f"GPU {memory.index}: {holders_text(memory.holders, owner_words)}"
        for memory in read_memory(gpus, nvml, within_s=10.0)
        if memory.holders
    ]
    return "; ".join(lines) or "no process uses a GPU now"


def owner_words(pid: int) -> str | None:
    """Return a process's name, container and Slurm job; None if the driver uses other PIDs than this container."""
    if not names_all_processes():
        return None
    owner = read_owner(pid)
    words = [owner.process]
    words += [f"container {owner.container_id[:12]}"] if owner.container_id else []
    words += [f"pod {owner.pod_uid}"] if owner.pod_uid else []
    words += [f"Slurm job {owner.slurm_job}"] if owner.slurm_job else []
    return ", ".join(filter(None, words)) or None
