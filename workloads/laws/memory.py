"""The bytes of training state on one rank by the accounts of papers.

The states as this implementation keeps them are the card's to say, see `workloads.laws.terms`; what lives beside them
in a step is in `workloads.laws.live_tensors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from workloads.laws.terms import States

Stage = Literal[0, 1, 2, 3]
"""What ZeRO divides among data ranks: nothing, optimizer states, gradients too, parameters too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Bytes of state that an account gives each parameter, before anything is divided."""

    parameters: int
    gradients: int
    optimizer: int


MIXED_PRECISION = Account(parameters=2, gradients=2, optimizer=12)
"""The paper's: fp16 weights and gradients; weights, momentum and variance of Adam in fp32.

Source: Rajbhandari et al. 2020, ZeRO, section 3.1.
"""

HALF_PRECISION = Account(parameters=2, gradients=2, optimizer=4)
"""All in two bytes, Adam's two moments too, and no fp32 copy of the weights: a popular account that is too low."""


def paper_states(
    parameters: int,
    *,
    stage: Stage,
    data_ranks: int,
    model_ranks: int = 1,
    account: Account = MIXED_PRECISION,
) -> States:
    """States of one rank, each part rounded up to the byte; as if every part could be divided evenly.

    model_ranks: those that divide the model itself among them, by tensors or by layers.
    Source: Rajbhandari et al. 2020, ZeRO, section 5 and figure 1.

    Raises:
        ValueError: there is no rank.
    """
    for name, ranks in (("data_ranks", data_ranks), ("model_ranks", model_ranks)):
        if ranks < 1:
            raise ValueError(f"{name} is {ranks}; it must be 1 or more")
    share = Fraction(parameters, model_ranks)

    def held_bytes(bytes_each: int, *, divided_from: int) -> int:
        exact = bytes_each * share / (data_ranks if stage >= divided_from else 1)
        return -(-exact.numerator // exact.denominator)

    return States(
        parameters_bytes=held_bytes(account.parameters, divided_from=3),
        gradients_bytes=held_bytes(account.gradients, divided_from=2),
        optimizer_bytes=held_bytes(account.optimizer, divided_from=1),
    )
