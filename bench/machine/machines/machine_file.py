"""Machine files: TOML descriptions of other machines, shipped with this program or written by the user.

A name such as `h100x8x64` means a shipped file and a number of nodes. Peaks of known GPUs come from
`bench.results.mfu`, not from files. Queries nothing on this host, and knows neither torch nor NVML.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bench.case import MOST
from bench.errors import Misuse, plural
from bench.results.mfu import Peak, peak_of
from collectors.settings_file import BadSettings, check, near_name, read_document
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import Link
from workloads.cost_models.interconnect import Interconnect, NetworkLevel
from workloads.spec import Precision

# The form of a file.

_Text = Annotated[str, Meta(min_length=1, title="a text that is not empty")]
_Source = Annotated[
    str, Meta(min_length=1, title="a text that is not empty", description="the data sheet, or who measured it")
]
_Rate = Annotated[float, Meta(ge=1e3, le=1e18)]
_Bytes = Annotated[int, Meta(ge=2**30, description="whole bytes, for example 85_899_345_920")]


class GpuTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU. name: as its driver gives it. memory_bytes: what torch reports as its total memory.

    memory_bandwidth_bytes_per_second: by the data sheet; needed only if this program lacks that data sheet.
    """

    name: _Text
    memory_bytes: _Bytes
    memory_source: _Source
    memory_bandwidth_bytes_per_second: _Rate | None = None


class LevelTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A level of links. gpus: how many GPUs one unit of the level joins; the outermost level joins all and has no
    number.

    bandwidth_bytes_per_second: one GPU's share, in each direction. latency_s: the latency of one message.
    """

    name: _Text
    bandwidth_bytes_per_second: _Rate
    latency_s: Annotated[float, Meta(ge=0, le=10)]
    source: _Source
    gpus: Annotated[int, Meta(ge=2)] | None = None


class PeakTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dense rates in FLOP/s of a GPU whose data sheet this program does not have."""

    source: _Source
    fp32: _Rate | None = None
    fp16: _Rate | None = None
    bf16: _Rate | None = None


class MachineTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine file."""

    schema_version: Annotated[int, Meta(ge=1, le=1)]
    description: _Text
    gpus_per_node: Annotated[int, Meta(ge=1, le=MOST["ranks"])]
    host_memory_bytes: _Bytes
    host_memory_source: _Source
    gpu: GpuTable
    levels: Annotated[list[LevelTable], Meta(min_length=1, title="one or more tables [[levels]], innermost first")]
    nodes: Annotated[int, Meta(ge=1, le=MOST["nodes"])] = 1
    peak_flops_per_second: PeakTable | None = None


# Planning for a machine.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMachine:
    """A machine that a dry run or a plan is for.

    name: as the user gave it. file: its name in messages. is_shipped: it comes with this program, so that its name can
    have any number of nodes.
    """

    name: str
    file: str
    table: MachineTable
    is_shipped: bool

    @property
    def gpus(self) -> int:
        """The number of GPUs of all nodes."""
        return self.table.nodes * self.table.gpus_per_node

    @property
    def words(self) -> str:
        """The machine in a few words: "8 nodes of 8 x NVIDIA H100 80GB HBM3"."""
        nodes = "" if self.table.nodes == 1 else f"{self.table.nodes} nodes of "
        return f"{nodes}{self.table.gpus_per_node} x {self.table.gpu.name}"

    def peak(self, precision: Precision) -> Peak | Absent:
        """Return the peak of one GPU by a data sheet; absent if none gives it."""
        table = self.table.peak_flops_per_second
        if table is None or isinstance(peak_of(self.table.gpu.name, precision), Peak):
            return peak_of(self.table.gpu.name, precision)
        rate: float | None = getattr(table, precision)
        if rate is None:
            return Absent(
                reason=f"{self.file} gives no {precision} peak of {self.table.gpu.name}; add"
                f" peak_flops_per_second.{precision} from its data sheet"
            )
        return Peak(
            device=self.table.gpu.name,
            precision=precision,
            flops_per_second=rate,
            bandwidth_bytes_per_second=0.0,
            source=table.source,
        )

    def memory_bandwidth(self) -> float | Absent:
        """Return the bytes per second of one GPU's memory by a data sheet; absent if none gives it."""
        gpu = self.table.gpu
        if gpu.memory_bandwidth_bytes_per_second is not None:
            return gpu.memory_bandwidth_bytes_per_second
        if isinstance(sheet := peak_of(gpu.name, "fp32"), Peak) or isinstance(sheet := peak_of(gpu.name, "bf16"), Peak):
            return sheet.bandwidth_bytes_per_second
        return Absent(
            reason=f"{self.file} gives no memory bandwidth of {gpu.name}; add gpu.memory_bandwidth_bytes_per_second"
            " from its data sheet"
        )

    def interconnect(self, ranks: int, nodes: int, *, efficiency: float = 1.0) -> Interconnect:
        """Return the links between ranks that fill this many nodes evenly, innermost level first.

        efficiency: the reached share of each level's bandwidth. Levels that no rank would cross are left out.
        """
        per_node = math.ceil(ranks / nodes)
        levels: list[NetworkLevel] = []
        below = 1
        for level in self.table.levels:
            unit = _ranks_of_unit(level, per_node, self.table.gpus_per_node)
            holds = max(ranks, below) if unit is None else unit
            holds = math.ceil(holds / below) * below
            if holds == below and levels:
                continue
            rate = below * level.bandwidth_bytes_per_second * efficiency
            link = Link(bandwidth_bytes_per_second=rate, latency_s=level.latency_s)
            levels.append(NetworkLevel(name=level.name, ranks=holds, link=link))
            below = holds
            if holds >= ranks:
                break
        return Interconnect(levels=tuple(levels))

    def too_few(self, ranks: int) -> str | None:
        """Return why the machine has too few GPUs for this many ranks, with a machine that has enough; or None."""
        if ranks <= self.gpus:
            return None
        if ranks > MOST["ranks"]:
            return (
                f"ranks is {ranks}; it must be {MOST['ranks']} or less, and {self.name} has {plural(self.gpus, 'GPU')}"
            )
        more = self.with_nodes(math.ceil(ranks / self.table.gpus_per_node))
        return (
            f"ranks is {ranks}, and {self.name} has {plural(self.gpus, 'GPU')}; use --ranks {self.gpus} or fewer, or"
            f" {more.words_to_choose}"
        )

    def with_nodes(self, nodes: int) -> PlannedMachine:
        """Return the same machine with another number of nodes."""
        name = f"{Path(self.file).stem}x{nodes}" if self.is_shipped else self.name
        return replace(self, name=name, table=msgspec.structs.replace(self.table, nodes=nodes))

    @property
    def words_to_choose(self) -> str:
        """What a user types to plan for this machine: "--on h100x8x4", or "nodes = 4 in own.toml"."""
        return f"--on {self.name}" if self.is_shipped else f"nodes = {self.table.nodes} in {self.file}"


def _ranks_of_unit(level: LevelTable, per_node: int, gpus_per_node: int) -> int | None:
    """Return how many ranks a unit of the level holds if a node has `per_node`; None for the outermost level."""
    if level.gpus is None:
        return None
    if level.gpus < gpus_per_node:
        return min(level.gpus, per_node)
    return level.gpus // gpus_per_node * per_node


SHIPPED = Path(__file__).parent / "shipped"
"""The folder of the machines that come with this program."""


def shipped_machines() -> dict[str, Path]:
    """Return the files of the machines that come with this program, by their names."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def read_machine(name: str) -> PlannedMachine:
    """Return the machine of this name, or of this file.

    name: a shipped machine, with or without a number of nodes (`h100x8`, `h100x8x64`), or the path of a TOML file.

    Raises:
        Misuse: there is none, or its file is wrong; the message says what it may be.
    """
    shipped = shipped_machines()
    base, _, count = name.rpartition("x")
    if name in shipped:
        return _read(shipped[name], name)
    if base in shipped and count.isascii() and count.isdigit():
        if not 1 <= int(count[:6]) <= MOST["nodes"]:
            raise Misuse(f"--on {name} has {count} nodes; it may have 1 to {MOST['nodes']:,}, for example {base}x8")
        return _read(shipped[base], name).with_nodes(int(count))
    if name.endswith(".toml") or "/" in name:
        return _read(Path(name), name)
    near = near_name(name, shipped)
    raise Misuse(
        f'machine "{name}" is unknown{"" if near is None else f"; did you mean {chr(34)}{near}{chr(34)}?"}; --on takes'
        f" {', '.join(shipped)}, each also with a number of nodes as in {next(iter(shipped))}x8, or a TOML file"
    )


def _read(path: Path, name: str) -> PlannedMachine:
    file = name if path.parent != SHIPPED else path.name
    try:
        table = check(read_document(path), MachineTable, file)
    except BadSettings as error:
        raise Misuse(str(error)) from None
    for reason in _refusals(table):
        raise Misuse(f"{file}: {reason}")
    return PlannedMachine(name=name, file=file, table=table, is_shipped=path.parent == SHIPPED)


def _refusals(table: MachineTable) -> Iterator[str]:
    """Yield what is wrong with a table whose form is valid."""
    *inner, outer = table.levels
    if outer.gpus is not None:
        yield (
            f'levels: "{outer.name}" joins {plural(outer.gpus, "GPU")}, and nothing joins more; add a last [[levels]]'
            " without gpus: the link that joins nodes"
        )
    for number, level in enumerate(inner):
        if level.gpus is None:
            yield f'levels[{number}]: "{level.name}" has no gpus, and only the last level joins all; add gpus'
    names = [level.name for level in table.levels]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield f'levels[{number}]: "{name}" is also levels[{names.index(name)}]; give each level its own name'
    for below, above in pairwise(level for level in inner if level.gpus is not None):
        assert below.gpus is not None, "these levels have a number"
        assert above.gpus is not None, "these levels have a number"
        if above.gpus <= below.gpus or above.gpus % below.gpus:
            yield (
                f'levels: "{above.name}" joins {above.gpus} GPUs and "{below.name}" {below.gpus}; each level joins a'
                " multiple of the GPUs of the one before it; give levels innermost first"
            )
    for level in inner:
        size, node = level.gpus or 1, table.gpus_per_node
        if size % node and node % size:
            yield f'levels: "{level.name}" joins {size} GPUs, and a node has {node}; give a divisor or a multiple'
    widest = max((level.gpus or 1 for level in inner), default=1)
    if table.nodes > 1 and widest < table.gpus_per_node:
        yield (
            f'levels: none before "{outer.name}" joins the {table.gpus_per_node} GPUs of a node; add a [[levels]] with'
            f" gpus = {table.gpus_per_node}: the link inside a node"
        )
    yield from _peak_refusals(table)


CLOSE_RATIO = 0.02
"""Largest difference between a file's rate and that of `bench.results.mfu`, as data sheets round."""


def _peak_refusals(table: MachineTable) -> Iterator[str]:
    name, own = table.gpu.name, table.peak_flops_per_second
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
    known = {precision: peak_of(name, precision) for precision in precisions}
    sheets: Mapping[Precision, Peak] = {key: peak for key, peak in known.items() if isinstance(peak, Peak)}
    bandwidth = table.gpu.memory_bandwidth_bytes_per_second
    for peak in [*sheets.values()][:1]:
        known_rate = peak.bandwidth_bytes_per_second
        if bandwidth is not None and abs(bandwidth / known_rate - 1) > CLOSE_RATIO:
            yield (
                f"gpu.memory_bandwidth_bytes_per_second is {bandwidth:.4g}, and no data sheet gives that: {peak.source}"
                f" gives {known_rate:.4g}; leave it out"
            )
    if own is None:
        if not sheets:
            yield (
                f'gpu.name is "{name}", for which this program has no data sheet; add [peak_flops_per_second] with its'
                " dense rates and their source, or name the GPU as its driver does"
            )
        return
    for precision, peak in sheets.items():
        rate: float | None = getattr(own, precision)
        if rate is not None and abs(rate / peak.flops_per_second - 1) > CLOSE_RATIO:
            yield (
                f"peak_flops_per_second.{precision} is {rate:.4g}, and no data sheet gives that: {peak.source} gives"
                f" {peak.flops_per_second:.4g} dense; leave the table out"
            )
    if not sheets and own.fp32 is None and own.fp16 is None and own.bf16 is None:
        yield "peak_flops_per_second has no rate; add fp32, fp16 or bf16"
