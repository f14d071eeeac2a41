"""What `parameter_server` takes and refuses, and what its ranks hold and send."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.cost_models.absent import Absent
from workloads.cost_models.terms import Transfer
from workloads.parameter_server.spec import ParameterServerSpec
from workloads.spec import DataShare, OptionValue

WEIGHTS_BYTES = 4 * SMALL.parameters()


def setup(ranks: int, options: Mapping[str, OptionValue] | None = None) -> SmallSetup:
    return small_setup("parameter_server", ranks=ranks, options=options)


def test_the_first_ranks_are_servers_and_have_no_data() -> None:
    places = [ParameterServerSpec().data_share(setup(4, {"servers": 2}), rank) for rank in range(4)]
    assert places == [None, None, DataShare(rank=0, ranks=2), DataShare(rank=1, ranks=2)]


@pytest.mark.parametrize("ranks", [2, 3, 5, 9])
def test_the_defaults_run_where_workers_divide_the_batch(ranks: int) -> None:
    assert ParameterServerSpec().refusals(setup(ranks)) == []
    assert ParameterServerSpec().mesh(setup(ranks)) == {"server": ranks}


def test_servers_without_a_worker_are_refused_with_what_would_do() -> None:
    assert ParameterServerSpec().refusals(setup(3, {"servers": 3})) == [
        "ranks is 3 with servers=3, which leaves no worker to train; use --ranks 4 or more, or 1 to 2 servers"
    ]
    assert ParameterServerSpec().refusals(setup(2, {"servers": 2})) == [
        "ranks is 2 with servers=2, which leaves no worker to train; use --ranks 3 or more, or 1 server"
    ]


@pytest.mark.parametrize(("ranks", "most"), [(2, "1 server"), (3, "1 to 2 servers"), (48, "1 to 39 servers")])
def test_workers_without_a_server_are_refused_with_what_would_do(ranks: int, most: str) -> None:
    assert ParameterServerSpec().refusals(setup(ranks, {"servers": 0})) == [
        f"option servers is 0, and workers need one to push gradients to; use {most}"
    ]


def test_only_synchronous_updates_are_comparable_with_one_rank() -> None:
    assert ParameterServerSpec().incomparable(setup(3)) is None
    reason = ParameterServerSpec().incomparable(setup(3, {"mode": "asynchronous"}))
    assert reason is not None
    assert reason.endswith("use mode=synchronous")


def test_the_peak_is_not_covered_because_it_depends_on_who_pushes_when() -> None:
    peak = ParameterServerSpec().peak(setup(3))
    assert isinstance(peak, Absent)
    assert peak.reason.endswith("how many at once depends on timing")


def test_more_servers_than_tensors_are_refused() -> None:
    tensors = SMALL.parameter_tensors()
    assert ParameterServerSpec().refusals(setup(48, {"servers": 40})) == [
        f"option servers is 40; the model has {tensors} tensors, which are not split; use 1 to {tensors}"
    ]


def test_a_batch_is_shared_by_the_workers_alone() -> None:
    assert ParameterServerSpec().refusals(setup(4)) == [
        "batch 8 cannot be shared equally by 3 data ranks; --batch 6 or 9 would fit"
    ]


def test_staleness_is_refused_where_nobody_is_ahead() -> None:
    assert ParameterServerSpec().refusals(setup(3, {"staleness": 2})) == [
        "option staleness is 2 with mode=synchronous, where no worker is ever ahead; leave it out, or use"
        " mode=asynchronous"
    ]
    assert ParameterServerSpec().refusals(setup(3, {"staleness": 2, "mode": "asynchronous"})) == []


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_together_hold_one_model_and_one_optimizer(servers: int) -> None:
    held = [ParameterServerSpec().states(setup(servers + 2, {"servers": servers}), rank) for rank in range(servers)]
    assert sum(states.parameters_bytes for states in held) == WEIGHTS_BYTES
    assert sum(states.gradients_bytes for states in held) == WEIGHTS_BYTES
    moments_bytes, counts_bytes = 2 * WEIGHTS_BYTES, 4 * SMALL.parameter_tensors()
    assert sum(states.optimizer_bytes for states in held) == moments_bytes + counts_bytes


def test_a_worker_has_no_optimizer() -> None:
    states = ParameterServerSpec().states(setup(3), 2)
    assert (states.parameters_bytes, states.gradients_bytes) == (WEIGHTS_BYTES, WEIGHTS_BYTES)
    assert states.optimizer_bytes == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_waits_for_the_server_to_receive_from_all_workers_and_to_send_to_all(workers: int) -> None:
    one_way = Transfer(collective="send", axis="server", payload_bytes=workers * WEIGHTS_BYTES)
    assert ParameterServerSpec().transfers(setup(1 + workers)) == (one_way, one_way)
