"""Servers and workers together train as one rank does; asynchronously they learn, and no worker runs ahead."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import OnRanks, leaving
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready, train
from workloads.parameter_server.cost_model import StepTraffic, server_traffic, shares, worker_traffic
from workloads.parameter_server.messages import PeerLost
from workloads.parameter_server.server import AsynchronousServer, SynchronousServer
from workloads.parameter_server.strategy import Worker
from workloads.spec import LIMITS, OptionValue, Precision

SHAPE = replace(SMALL, batch=12)
"""For 1 to 3 workers."""
SERVER, SLOW, FAST = 0, 1, 2
LEADER_STEPS = 8
PAUSE_S = 0.05


def servers_and_workers(
    servers: int,
    workers: int,
    *,
    precision: Precision = "fp32",
    options: Mapping[str, OptionValue] | None = None,
) -> SmallSetup:
    return small_setup(
        "parameter_server",
        ranks=servers + workers,
        shape=SHAPE,
        precision=precision,
        options={"servers": servers, **(options or {})},
    )


@pytest.mark.parametrize(
    ("servers", "workers", "precision", "clip"),
    [(1, 3, "fp32", 0.0), (2, 2, "fp32", 0.1), (3, 1, "fp16", 0.1)],
)
def test_any_number_of_servers_and_workers_trains_as_one_rank_does(
    servers: int, workers: int, precision: Precision, clip: float, on_ranks: OnRanks
) -> None:
    """Servers that clip do so to less than the norm, so that one which knew its own part's alone would be found out."""
    single = small_setup(shape=SHAPE, precision=precision, options={"clip": clip})
    (expected,) = on_ranks(1, train, single, 3)
    setup = servers_and_workers(servers, workers, precision=precision, options={"clip": clip})
    records = on_ranks(setup.ranks, train, setup, 3)
    for step, truth in enumerate(expected):
        losses = [record[step].loss for record in records]
        assert losses[:servers] == [None] * servers
        known = [loss for loss in losses if loss is not None]
        assert sum(known) / workers == pytest.approx(truth.loss, rel=LIMITS[precision])
        for record in records:
            assert record[step].gradients.keys() == truth.gradients.keys()
            for name, gradient in record[step].gradients.items():
                difference = (gradient - truth.gradients[name]).norm() / truth.gradients[name].norm()
                assert difference.item() <= LIMITS[precision]


def weights_change(setup: SmallSetup) -> tuple[bool, bool]:
    """Whether this rank's weights changed in a step in which the last rank's gradient overflowed, and in the next."""
    ready = make_ready(setup)
    ready.step()
    weights = list(ready.workload.model.parameters())
    seen = [[weight.detach().clone() for weight in weights]]
    broken = weights[-1].register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: torch.full_like(gradient, math.inf)
    )
    if dist.get_rank() != setup.ranks - 1:
        broken.remove()
    for _ in range(2):
        ready.step()
        broken.remove()
        seen.append([weight.detach().clone() for weight in weights])
    before, between, after = (torch.cat([weight.flatten() for weight in one]) for one in seen)
    return not torch.equal(before, between), not torch.equal(between, after)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_no_server_updates_with_a_gradient_that_overflowed(mode: str, on_ranks: OnRanks) -> None:
    """Of the two servers only one holds the weight whose gradient did."""
    workers = 2 if mode == "synchronous" else 1
    setup = servers_and_workers(2, workers, precision="fp16", options={"mode": mode})
    assert on_ranks(setup.ranks, weights_change, setup) == [(False, True)] * setup.ranks


def losses(setup: SmallSetup, steps: int) -> list[float]:
    ready = make_ready(setup)
    found = [ready.step() for _ in range(steps)]
    return [loss.item() for loss in found if loss is not None]


def rates(setup: SmallSetup, steps: int) -> list[float]:
    """Those that this rank's optimizer has after each step, none on a worker."""
    ready = make_ready(setup)
    found = []
    for _ in range(steps):
        ready.step()
        found += [group["lr"] for group in ready.workload.optimizer.param_groups if "lr" in group]
    return found


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_warm_up_goes_by_steps_and_not_by_updates(mode: str, on_ranks: OnRanks) -> None:
    warm: Mapping[str, OptionValue] = {"learning_rate": 1e-3, "lr_rule": "linear", "lr_warm_up": 4}
    setup = servers_and_workers(1, 2, options={"mode": mode, **warm})
    assert on_ranks(setup.ranks, rates, setup, 6)[SERVER] == pytest.approx([1e-3, 1.25e-3, 1.5e-3, 1.75e-3, 2e-3, 2e-3])


def test_asynchronous_workers_learn(on_ranks: OnRanks) -> None:
    setup = servers_and_workers(2, 2, options={"mode": "asynchronous", "learning_rate": 3e-3})
    for found in on_ranks(setup.ranks, losses, setup, 20)[2:]:
        assert sum(found[-5:]) < 0.8 * sum(found[:5])


def leads(setup: SmallSetup) -> list[int]:
    """Steps by which the fast worker was ahead of the slow one's when it began each; the most that the server saw.

    The slow one begins a step only when the fast one is as far ahead as it may be, and after time to go farther.
    """
    ready, staleness = make_ready(setup), int(setup.options["staleness"])
    store, rank = dist.group.WORLD.get_group_store(), dist.get_rank()  # type: ignore[union-attr]
    found = []
    for step in range(LEADER_STEPS):
        if rank == SLOW:
            store.wait([f"begun {min(step + staleness, LEADER_STEPS - 1)}"])
            time.sleep(PAUSE_S)
            store.add("slow", 1)
        elif rank == FAST:
            found.append(step - store.add("slow", 0))
            store.set(f"begun {step}", "")
        ready.step()
    if isinstance(ready.workload, AsynchronousServer):
        found.append(ready.workload.largest_lead)
    return found


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_worker_is_ever_farther_ahead_than_staleness_allows(staleness: int, on_ranks: OnRanks) -> None:
    setup = servers_and_workers(1, 2, options={"mode": "asynchronous", "staleness": staleness})
    found = on_ranks(setup.ranks, leads, setup)
    assert found[SERVER] == [staleness]
    assert max(found[FAST]) == staleness


def payload_bytes(setup: SmallSetup, steps: int) -> int:
    """Bytes of tensors that this rank sent and received, summed over all steps."""
    ready = make_ready(setup)
    total_bytes = 0
    for _ in range(steps):
        ready.step()
        assert isinstance(ready.workload, SynchronousServer | AsynchronousServer | Worker)
        total_bytes += ready.workload.payload_bytes()["send"]
    return total_bytes


@pytest.mark.parametrize(
    ("mode", "servers", "workers"),
    [
        ("synchronous", 1, 1),
        ("synchronous", 1, 2),
        ("synchronous", 1, 3),
        ("synchronous", 2, 2),
        ("asynchronous", 2, 2),
    ],
)
def test_every_rank_counts_the_bytes_of_the_law(mode: str, servers: int, workers: int, on_ranks: OnRanks) -> None:
    expected: list[StepTraffic] = [server_traffic(share, workers) for share in shares(SHAPE, servers)]
    expected += [worker_traffic(SHAPE)] * workers
    setup = servers_and_workers(servers, workers, options={"mode": mode})
    counted_bytes = on_ranks(setup.ranks, payload_bytes, setup, 2)
    assert counted_bytes == [2 * (traffic.sent_bytes + traffic.received_bytes) for traffic in expected]


KEPT: list[object] = []
"""Workloads whose messages are still under way: gloo drops a message whose sender has freed it."""


def last_words(setup: SmallSetup, leaver: int) -> str:
    """What this rank says when, after a step of all, one rank has left; a server then leaves too, and lets workers go.

    A worker stays until all have spoken: a server that lost two peers could name either.
    """
    ready = make_ready(setup)
    KEPT.append(ready)
    ready.step()
    if dist.get_rank() == leaver:
        return leaving("left")
    try:
        for _ in range(2):
            ready.step()
    except PeerLost as error:
        return str(error) if isinstance(ready.workload, Worker) else leaving(str(error))
    return leaving("nothing was amiss")


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_server_names_the_worker_that_is_gone(mode: str, on_fresh_ranks: OnRanks) -> None:
    setup = servers_and_workers(1, 2, options={"mode": mode})
    server, *_ = on_fresh_ranks(setup.ranks, last_words, setup, 2)
    assert server == "Connection closed: rank 2 is gone, a worker whose gradients are missing"


@pytest.mark.parametrize("servers", [1, 2])
def test_ranks_name_the_server_that_is_gone(servers: int, on_fresh_ranks: OnRanks) -> None:
    """A worker, and where there are two a server, which needs the other one's norm."""
    setup = servers_and_workers(servers, 1)
    leaver = servers - 1
    words = on_fresh_ranks(setup.ranks, last_words, setup, leaver)
    who = f"rank {leaver}" if leaver == 0 else "another server"
    assert words[1 if leaver == 0 else 0].startswith(f"{who} timed out or is gone")
