"""The learning rate, set in an optimizer before each of its steps."""

from __future__ import annotations

from torch.optim import Optimizer

from workloads.cards.card import Setup
from workloads.cards.check_options import check_of, is_made
from workloads.cards.training_options import rate_factor
from workloads.roster import card_of


class LearningRate:
    """The rates of a training, step after step, by the rule of its options."""

    def __init__(self, setup: Setup) -> None:
        check = check_of(setup)
        self._setup = setup
        self._data_ranks = card_of(setup.strategy).data_ranks(setup) if check is None else check.data_ranks
        self._is_scaled = not is_made("learning_rate", setup)
        self._step = 0

    def begin_step(self, optimizer: Optimizer) -> None:
        """Set what the optimizer's next update uses: a multiple of the rate that it was made with.

        An optimizer that updates nothing itself has no rate, and gets none.
        """
        factor = rate_factor(self._setup, data_ranks=self._data_ranks, step=self._step) if self._is_scaled else 1.0
        for group in optimizer.param_groups:
            if "lr" in group:
                group["lr"] = factor * group.setdefault("initial_lr", group["lr"])
        self._step += 1
