"""Divides the exposed communication of a step among its transfers, and so among the levels of links that they cross.

The sum comes from the cost models (`step_time`, `step_of`). Transfers that hide behind one phase queue for the same
link: what the queue adds to the phase is divided among them by their times. In a pipeline, the update's collectives
follow the last action and are fully exposed; the waits of the simulated schedule are divided among the other transfers
by their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.case import Case
from workloads.cost_models.interconnect import Interconnect, transfer_axis, transfer_time_s
from workloads.cost_models.step_time import ComputeTime, StepTime, queue_exposed_s
from workloads.cost_models.terms import Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedTransfer:
    """A transfer and the time that it adds to the step.

    level: name of the outermost level of links that it crosses. rank_bytes_per_second: that level's bandwidth divided
    by the ranks of a unit that it joins. elapsed_s: hidden or not.
    """

    transfer: Transfer
    level: str
    rank_bytes_per_second: float
    elapsed_s: float
    exposed_s: float = 0.0


def exposed_transfers(
    case: Case, compute: ComputeTime, links: Interconnect, *, whole: StepTime | None, hiding: float
) -> tuple[ExposedTransfer, ...]:
    """Return the transfers of a step that cross a link, with the time that each adds.

    whole: the simulated step of a pipeline; None for other strategies. hiding: see `queue_exposed_s`; not used for a
    pipeline, which is simulated.
    """
    spec = case.spec()
    axes = spec.mesh(case)
    timed: list[ExposedTransfer] = []
    for transfer in spec.transfers(case):
        crossed = links.crossed(transfer_axis(transfer, axes))
        if not crossed:
            continue
        outermost = crossed[-1]
        below = links.part_sizes[links.levels.index(outermost)]
        known = links.links(transfer_axis(transfer, axes), transfer.collective)
        assert isinstance(known, tuple), "its links are known"
        timed.append(
            ExposedTransfer(
                transfer=transfer,
                level=outermost.name,
                rank_bytes_per_second=known[-1].bandwidth_bytes_per_second / below,
                elapsed_s=transfer_time_s(transfer, axes, links, case.backend),
            )
        )
    if whole is not None:
        updates = set(spec.update_transfers(case))
        after = [replace(each, exposed_s=each.elapsed_s) for each in timed if each.transfer in updates]
        within = [each for each in timed if each.transfer not in updates]
        left_s = max(0.0, whole.exposed_s - sum(each.exposed_s for each in after))
        return (*after, *_divided(within, left_s))
    exposed = [replace(each, exposed_s=each.elapsed_s) for each in timed if each.transfer.behind is None]
    for phase, phase_s in (("forward", compute.forward_s), ("backward", compute.backward_s)):
        queue = [each for each in timed if each.transfer.behind == phase]
        runs = [(each.elapsed_s / each.transfer.calls, each.transfer.calls) for each in queue]
        exposed += _divided(queue, queue_exposed_s(phase_s, runs, hiding))
    return tuple(exposed)


def _divided(transfers: Sequence[ExposedTransfer], exposed_s: float) -> list[ExposedTransfer]:
    """Divide the exposed time of transfers among them by their times."""
    whole_s = sum(each.elapsed_s for each in transfers)
    if whole_s == 0:
        return list(transfers)
    return [replace(each, exposed_s=exposed_s * each.elapsed_s / whole_s) for each in transfers]
