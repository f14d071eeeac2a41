"""One rank of a network in a box that trains a strategy, and counts what passes its node in a step.

Started as `python -m tests.slow.ranks.pushing_rank ORDER`, a `StepOrder` as JSON.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import msgspec

from tests.slow.ranks.boxed_ranks import Order, serve_rank
from tests.slow.ranks.collective_rank import Passed, count_bytes
from tests.workloads.training.setups import SMALL, small_setup
from tests.workloads.training.training_runs import make_ready
from workloads.spec import OptionValue

STEPS = 4
SHAPE = replace(SMALL, width=192, mlp_width=512, batch=12)
"""Some 7 MB of weights, so that chatter does not count; divisible by 1 to 3 workers."""


class StepOrder(Order, frozen=True, kw_only=True):
    """What every rank is told, and which strategy to run."""

    strategy: str
    options: dict[str, OptionValue]


def passed_in_a_step(order: StepOrder) -> Passed:
    """Bytes that pass the node in a step, averaged over some steps; the least of several times."""
    ready = make_ready(small_setup(order.strategy, ranks=order.ranks, shape=SHAPE, options=order.options))

    def steps() -> None:
        for _ in range(STEPS):
            ready.step()

    counted = count_bytes(steps)
    return Passed(
        sent_bytes=min(passed.sent_bytes for passed in counted) // STEPS,
        received_bytes=min(passed.received_bytes for passed in counted) // STEPS,
    )


def main() -> None:
    """Count for the order on the command line."""
    order = msgspec.json.decode(sys.argv[1], type=StepOrder)
    serve_rank(order, lambda: passed_in_a_step(order))


if __name__ == "__main__":
    main()
