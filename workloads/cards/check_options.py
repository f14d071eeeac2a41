"""What a convergence check adds to the options of a case: the harness's own, which no card lists.

So no command line sets them, `observatory list` does not show them, they are recorded where all options are, and no
case that has them is comparable with one that has not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from workloads.cards.card import OptionValue, Setup

Mistake = Literal["learning_rate", "sampler_epoch", "batch_statistics"]
"""What is made wrong on purpose. learning_rate: the rule that scales it is not applied. sampler_epoch: each epoch has
the order of the first. batch_statistics: each rank normalises by its own share of the batch."""

MISTAKES: tuple[Mistake, ...] = get_args(Mistake)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How a training is changed so that a check can see what it does.

    epoch_steps: after which the data begin anew in another order.
    data_ranks: that the rule of the learning rate counts, so that one rank trains at the rates of many.
    has_batch_norm: the model has one layer that normalises over the batch.
    is_reversed: each batch is read backwards, which changes nothing but the order of additions.
    """

    epoch_steps: int
    data_ranks: int
    has_batch_norm: bool
    is_reversed: bool = False
    mistakes: tuple[Mistake, ...] = ()

    def options(self) -> dict[str, OptionValue]:
        """It as options of a case."""
        return {
            "check_epoch_steps": self.epoch_steps,
            "check_data_ranks": self.data_ranks,
            "check_batch_norm": self.has_batch_norm,
            "check_reversed": self.is_reversed,
            "check_mistakes": ",".join(self.mistakes),
        }


def check_of(setup: Setup) -> Check | None:
    """What the setup's options say of a check; None where it is none."""
    options = setup.options
    if "check_epoch_steps" not in options:
        return None
    words = str(options["check_mistakes"]).split(",")
    return Check(
        epoch_steps=int(options["check_epoch_steps"]),
        data_ranks=int(options["check_data_ranks"]),
        has_batch_norm=bool(options["check_batch_norm"]),
        is_reversed=bool(options["check_reversed"]),
        mistakes=tuple(mistake for mistake in MISTAKES if mistake in words),
    )


def is_made(mistake: Mistake, setup: Setup) -> bool:
    """Whether this training makes the mistake."""
    check = check_of(setup)
    return check is not None and mistake in check.mistakes
