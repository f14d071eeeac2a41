"""What ranks send in a step with weights=bf16_compute is what the specs declare, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready
from tests.workloads.training.watched_steps import held_states, watch_step
from workloads.cost_models.communication import recorded_bytes
from workloads.cost_models.terms import States
from workloads.protocols import CountsPayload
from workloads.registry import spec_of
from workloads.spec import OptionValue

pytestmark = pytest.mark.slow

Options = Mapping[str, OptionValue]

CASES: tuple[tuple[str, int, Options], ...] = (
    ("one_f_one_b", 2, {}),
    ("one_f_one_b", 2, {"clip": 0.0, "checkpoint": "full"}),
    ("interleaved", 2, {}),
    ("tensor_parallel", 2, {}),
    ("tensor_parallel", 2, {"sequence_parallel": True, "loss_parallel": True, "accumulate": 2}),
    ("tensor_parallel", 2, {"sequence_parallel": True, "checkpoint": "selective"}),
    ("ulysses", 2, {"accumulate": 2}),
    ("ulysses", 2, {"sharded": True, "accumulate": 2, "checkpoint": "full"}),
    ("ring_attention", 2, {"checkpoint": "selective", "accumulate": 2}),
    ("ring_attention", 2, {"sharded": True, "accumulate": 2}),
    ("three_d", 4, {"tensor_ranks": 1, "data_axis": "fsdp"}),
    ("three_d", 4, {"sequence_parallel": True}),
    ("three_d", 8, {"data_axis": "fsdp", "sequence_parallel": True, "checkpoint": "full"}),
)


def sent_and_held(setup: SmallSetup) -> tuple[dict[str, int], States]:
    """Bytes by collective of a third step, and the states after it; messages by the workload's own count."""
    ready = make_ready(setup)
    for _ in range(2):
        ready.step()
    sent = Counter(watch_step(ready).payload_bytes)
    if isinstance(ready.workload, CountsPayload):
        sent.update(ready.workload.payload_bytes())
    return dict(sent), held_states(ready.workload)


@pytest.mark.parametrize(("name", "ranks", "options"), CASES, ids=str)
def test_ranks_send_and_hold_the_bytes_that_the_spec_declares(
    name: str, ranks: int, options: Options, on_ranks: OnRanks
) -> None:
    setup = small_setup(name, ranks=ranks, precision="bf16", options={"weights": "bf16_compute", **options})
    spec = spec_of(name)
    assert not spec.all_refusals(setup)
    most: Counter[str] = Counter()
    for rank, (sent, states) in enumerate(on_ranks(ranks, sent_and_held, setup)):
        most |= Counter(sent)  # Stages send unequally: the law is that of the rank that sends most.
        assert states == spec.states(setup, rank)
    assert dict(most) == recorded_bytes(spec.transfers(setup), "gloo")
