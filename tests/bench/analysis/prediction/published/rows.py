"""Published measurements of training as data: reports, their rows, and the case and machine of each row.

A report is a TOML file of this folder, with its address, date and conditions. What of a report cannot be compared is
listed in the same file, with the reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bench.analysis.prediction.forecast import Forecast, forecast_on, recomputed_of
from bench.case import Case, check, parse_options, settle
from bench.machine.machines.machine_file import PlannedMachine, read_machine
from bench.results.mfu import Peak
from workloads.cost_models.roofline import Recomputed
from workloads.cost_models.shape import Shape
from workloads.registry import spec_of

FOLDER = Path(__file__).parent
FILES = ("torchtitan.toml", "llm_foundry.toml")

_Text = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1)]
_Positive = Annotated[float, Meta(gt=0)]


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a report, without the batch."""

    layers: _Count
    width: _Count
    heads: _Count
    kv_heads: _Count
    mlp_width: _Count
    vocabulary: _Count
    is_tied: bool


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row as published.

    microbatch: sequences of one GPU at a time; accumulate: how many such a GPU computes in a step.
    recomputed_products: share of the forward products that backward repeats, where `checkpoint` does not say it.
    memory_gib: what the allocator has reserved. mfu_percent: as published.
    """

    model: _Text
    sequence: _Count
    gpus: _Count
    microbatch: _Count
    accumulate: _Count
    strategy: Literal["fsdp", "zero2"]
    checkpoint: Literal["none", "full", "selective"]
    tokens_per_second_per_gpu: _Positive
    compile: Literal["none", "default"] = "none"
    recomputed_products: Annotated[float, Meta(ge=0, le=1)] | None = None
    memory_gib: _Positive | None = None
    mfu_percent: _Positive | None = None


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    columns: list[str]
    rows: list[list[str | int | float]]


class NotCompared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of a report that are left out, and why."""

    rows: _Text
    reason: _Text


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of published rows. machine: a shipped machine of one node, or a machine file of this folder."""

    schema_version: Annotated[int, Meta(ge=1, le=1)]
    report: _Text
    title: _Text
    address: Annotated[str, Meta(pattern="^https://")]
    date: _Text
    machine: _Text
    conditions: Annotated[list[_Text], Meta(min_length=1)]
    models: dict[str, Model]
    table: _Table
    not_compared: list[NotCompared]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published row with what is needed to predict it. number: its place in the report's table, from 1."""

    report: Report
    number: int
    published: Published

    @property
    def measured(self) -> float:
        """Tokens per second and GPU."""
        return self.published.tokens_per_second_per_gpu

    @cached_property
    def shape(self) -> Shape:
        row = self.published
        model = self.report.models[row.model]
        return Shape(
            layers=model.layers,
            width=model.width,
            heads=model.heads,
            kv_heads=model.kv_heads,
            mlp_width=model.mlp_width,
            vocabulary=model.vocabulary,
            is_tied=model.is_tied,
            sequence=row.sequence,
            batch=row.microbatch * row.accumulate * row.gpus,
        )

    @property
    def tokens_per_gpu(self) -> float:
        """Tokens of one GPU in a step."""
        return self.shape.tokens / self.published.gpus

    @property
    def words(self) -> str:
        """The row in a few words: "7b, 2048, 8 GPUs, 6 x 1"."""
        row = self.published
        compiled = "" if row.compile == "none" else ", compiled"
        return f"{row.model}, {row.sequence}, {row.gpus} GPUs, {row.microbatch} x {row.accumulate}{compiled}"

    @cached_property
    def machine(self) -> PlannedMachine:
        name = self.report.machine
        node = read_machine(str(FOLDER / name) if name.endswith(".toml") else name)
        return node.with_nodes(math.ceil(self.published.gpus / node.table.gpus_per_node))

    @cached_property
    def peak(self) -> Peak:
        """The data sheet's rate in bf16."""
        peak = self.machine.peak("bf16")
        assert isinstance(peak, Peak), "each machine of a report has a rate"
        return peak

    @cached_property
    def case(self) -> Case:
        """The row as a case of ours."""
        row = self.published
        spec = spec_of(row.strategy)
        options = [f"accumulate={row.accumulate}", f"checkpoint={row.checkpoint}", f"compile={row.compile}"]
        case = Case(
            strategy=spec.name,
            version=spec.version_on("cuda"),
            ranks=row.gpus,
            model=self.shape,
            device="cuda",
            backend="nccl",
            precision="bf16",
            threads=1,
            trials=1,
            steps=1,
            warm_up=0,
            trace_steps=0,
            seed=0,
            options=parse_options(spec, options),
            nodes=self.machine.table.nodes,
            bind=True,
        )
        return check(settle(case))

    @property
    def step_s(self) -> float:
        """The measured step."""
        return self.tokens_per_gpu / self.measured

    @property
    def memory_bytes_per_second(self) -> float:
        """The data sheet's bandwidth of memory."""
        bandwidth = self.machine.memory_bandwidth()
        assert isinstance(bandwidth, float), "each machine of a report has one"
        return bandwidth

    @property
    def recomputed(self) -> Recomputed:
        """What backward computes again, by the report."""
        ours = recomputed_of(self.case)
        again = self.published.recomputed_products
        return ours if again is None else replace(ours, products=again)

    @cached_property
    def predicted(self) -> Forecast:
        """What the product predicts of the row."""
        return forecast_on(self.case, self.machine, self.recomputed)


def read_report(name: str) -> Report:
    """Return a report of this folder.

    Raises:
        msgspec.ValidationError: the file has another form.
    """
    return msgspec.toml.decode((FOLDER / name).read_bytes(), type=Report)


def rows_of(report: Report) -> list[Row]:
    """Return the rows of a report, in its order.

    Raises:
        ValueError: a row has more or fewer values than there are columns, or an unknown model.
        msgspec.ValidationError: a value is wrong.
    """
    columns = report.table.columns
    rows = [
        Row(
            report=report,
            number=number,
            published=msgspec.convert(dict(zip(columns, values, strict=True)), Published),
        )
        for number, values in enumerate(report.table.rows, 1)
    ]
    unknown = {row.published.model for row in rows} - set(report.models)
    if unknown:
        raise ValueError(f"{report.report}: no such model: {', '.join(sorted(unknown))}")
    return rows
