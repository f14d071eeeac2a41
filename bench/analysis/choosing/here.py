"""The ground of a choice on this machine: the measured rates in its history.

The choice itself measures nothing. If no step can be predicted, the refusal names the command that measures a missing
rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.analysis.choosing.candidates import refuse_nothing
from bench.analysis.choosing.ground import ORIGIN, Ground
from bench.analysis.choosing.setups import setups_of, whole_refusal
from bench.analysis.prediction.forecast import reasons_for_no_step
from bench.analysis.prediction.from_history import Place, history_rates
from bench.case import Case, settle
from bench.errors import Misuse
from bench.machine.gpus import Gpu
from bench.machine.machine import hardware_here
from bench.machine.preflight import available_bytes
from bench.store.links import Runs
from workloads.spec import Device, OptionValue

NO_HOST = "a CPU's host time is left out, because only strategies that have run have it"


def ground_here(
    bases: Sequence[Case], fixed: Mapping[str, OptionValue], history: Runs, *, cores: int, gpus: Sequence[Gpu]
) -> Ground:
    """Return the ground on this machine.

    bases: a case of each strategy, all on the same ranks. fixed: options that the user set.

    Raises:
        Misuse: the history lacks a rate for every strategy; the message has the commands that measure all of them. Or
            no strategy can run on these ranks.
        InfrastructureFailed: the history cannot be read.
    """
    first = bases[0]
    hardware = hardware_here(first.device, cores=cores, gpus=gpus)
    possible = [case for base in bases if (case := _runnable(base, fixed)) is not None]
    if not possible:
        refuse_nothing({base.strategy: setups_of(base, fixed) for base in bases})
    # One sweep measures what all strategies send.
    sent = tuple(dict.fromkeys(each.collective for case in possible for each in case.spec().transfers(case)))
    # Without the host's time, which would make strategies that have run look slower than those that have not.
    rates = {case.strategy: history_rates(Place(case=case, hardware=hardware, also=sent), history) for case in possible}
    reasons = {case.strategy: list(reasons_for_no_step(case, rates[case.strategy])) for case in possible}
    known = [name for name, absent in reasons.items() if not absent]
    if not known:
        missing = "; ".join(each.reason for each in max(reasons.values(), key=len))
        raise Misuse(f"nothing is predicted here: {missing}; or plan for another machine with --on")
    # A strategy that sends nothing needs no link.
    fullest = max(known, key=lambda name: len(rates[name].rests_on))
    return Ground(
        ranks=first.ranks,
        nodes=1,
        room_bytes=_room_bytes(first.device, first.ranks, gpus),
        machine=None,
        calibration=rates[fullest],
        by_strategy=rates,
        origin=f"{ORIGIN}; {NO_HOST}" if first.device == "cpu" else ORIGIN,
    )


def _runnable(base: Case, fixed: Mapping[str, OptionValue]) -> Case | None:
    """Return the case, or the strategy's first setup that can run if its defaults cannot; None if no setup can."""
    settled = settle(base)
    if whole_refusal(base) is None and not base.spec().all_refusals(settled, is_here=False):
        return settled
    return next(iter(setups_of(base, fixed).cases), None)


def _room_bytes(device: Device, ranks: int, gpus: Sequence[Gpu]) -> int | None:
    """Return the memory of a rank: that of the smallest GPU, or an equal share of the host's free memory."""
    if device == "cpu":
        return available_bytes() // ranks
    sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    return min(sizes, default=None)
