"""The bytes that torch's Flight Recorder counts for the transfers of a step, so that both can stand side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from workloads.laws.communication import CommunicationBackend
from workloads.laws.terms import Collective, Transfer


def recorded_bytes(transfers: Iterable[Transfer], backend: CommunicationBackend) -> dict[Collective, int]:
    """Payload of one step, by the collective that the backend runs for each.

    gloo's reduce_scatter is an all_reduce of the whole input, in torch 2.11 to 2.13.
    """
    counted: Counter[Collective] = Counter()
    for transfer in transfers:
        is_reduced_whole = backend == "gloo" and transfer.collective == "reduce_scatter"
        counted["all_reduce" if is_reduced_whole else transfer.collective] += transfer.payload_bytes
    return dict(counted)
