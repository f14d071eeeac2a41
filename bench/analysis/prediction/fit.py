"""Predicts a case on a remote machine: memory by part, bytes by level, step and MFU.

Memory and bytes come from the cost models, and the step is that of `observatory predict`. No machine is queried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.analysis.prediction.calibration import Range
from bench.analysis.prediction.forecast import Forecast, forecast_on
from bench.analysis.prediction.memory import MemoryFit
from bench.case import Case
from bench.machine.machines.machine_file import PlannedMachine
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import Interconnect, transfer_axis, transfer_time_s
from workloads.cost_models.step_time import StepTime
from workloads.cost_models.terms import Collective, Transfer

# Bytes of a step, by collective and level


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelTraffic:
    """One rank's collectives of one kind over one mesh axis in a step.

    level: the outermost level of links that the axis's ranks cross; None for an axis of one rank.
    elapsed_s: the sum of their times, hidden or not.
    """

    collective: Collective
    axis: str
    level: str | None
    payload_bytes: int
    calls: int
    elapsed_s: float


def traffic(case: Case, interconnect: Interconnect) -> Iterator[LevelTraffic]:
    """Yield the transfers of a step, added up by collective, axis and outermost level crossed."""
    if case.model is None:
        return
    spec = case.spec()
    axes = spec.mesh(case)
    together: dict[tuple[Collective, str, str | None], list[Transfer]] = {}
    for transfer in spec.transfers(case):
        crossed = interconnect.crossed(transfer_axis(transfer, axes))
        level = crossed[-1].name if crossed else None
        together.setdefault((transfer.collective, transfer.axis, level), []).append(transfer)
    for (collective, name, level), transfers in together.items():
        yield LevelTraffic(
            collective=collective,
            axis=name,
            level=level,
            payload_bytes=sum(transfer.payload_bytes for transfer in transfers),
            calls=sum(transfer.calls for transfer in transfers),
            elapsed_s=sum(transfer_time_s(each, axes, interconnect, case.backend) for each in transfers),
        )


# A case on a machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The prediction of a case. forecast: its memory and step, as `observatory predict` prints them."""

    case: Case
    machine: PlannedMachine
    traffic: tuple[LevelTraffic, ...]
    forecast: Forecast

    @property
    def memory(self) -> MemoryFit:
        return self.forecast.memory

    @property
    def step(self) -> StepTime | Absent:
        """The step with its optimizer, or why it is absent."""
        return self.forecast.step

    @property
    def mfu(self) -> float | Absent:
        """MFU relative to the data sheet's peak."""
        return self.forecast.mfu.value if isinstance(self.forecast.mfu, Range) else self.forecast.mfu

    @property
    def rests_on(self) -> tuple[str, ...]:
        """The assumptions of the step, for people."""
        return self.forecast.rests_on


def fit(case: Case, machine: PlannedMachine) -> Fit:
    """Predict a case on a machine. Does not query this host."""
    predicted = forecast_on(case, machine)
    links = predicted.calibration.links
    return Fit(
        case=case,
        machine=machine,
        traffic=() if isinstance(links, Absent) else tuple(traffic(case, links["value"])),
        forecast=predicted,
    )
