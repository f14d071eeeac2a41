"""What the cards of strategies on `fully_shard` tell of the peak of a step."""

from __future__ import annotations

from workloads.cards.card import Setup
from workloads.cards.sharding_options import RESHARD
from workloads.cards.training_options import microbatch, peak_not_covered
from workloads.laws.live_tensors import Prediction
from workloads.laws.sharded_peak import sharded_step_peak
from workloads.laws.sharding import Sharding, sharded_states
from workloads.laws.terms import NotCovered


def sharding_peak(setup: Setup, sharding: Sharding) -> Prediction | NotCovered:
    """The peak on the rank that holds most. sharding: the setup as the laws see it."""
    if (reason := _not_covered(setup, sharding)) is not None:
        return reason
    states = max(
        (sharded_states(sharding, rank) for rank in range(sharding.ranks)), key=lambda held: held.optimizer_bytes
    )
    kept_ranks = int(setup.options.get(RESHARD.name, 0))
    return sharded_step_peak(
        microbatch(setup, setup.ranks),
        sharding=sharding,
        states=states,
        kept_ranks=kept_ranks if 0 < kept_ranks < sharding.ranks else None,
    )


def _not_covered(setup: Setup, sharding: Sharding) -> NotCovered | None:
    if (reason := peak_not_covered(setup)) is not None:
        return reason
    options = setup.options
    if sharding.is_overlapped or options["prefetch"]:
        return NotCovered(reason="how many gathered units live at once is the backend's and prefetch's to choose")
    if options["offload"]:
        return NotCovered(reason="offloading copies weights and gradients, which the law does not follow")
    if options["reduce_dtype"] == "bf16":
        return NotCovered(reason="gradients rounded before they are reduced live in two precisions at once")
    if sharding.ranks == 1:
        return NotCovered(reason="one rank alone gathers and reduces by other ways than the law's")
    return None
