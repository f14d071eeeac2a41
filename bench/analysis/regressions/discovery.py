"""False discoveries over the many series of a night, controlled by Benjamini and Hochberg's procedure."""

from __future__ import annotations

from collections.abc import Sequence

RATE = 0.1
"""Share of a night's discoveries that may be false: one alert in ten is what people put up with."""


def discoveries(p_values: Sequence[float | None], rate: float = RATE) -> tuple[bool, ...]:
    """Return of each series whether its p-value stands out among all of this night's.

    p_values: of `Judged`, None where a series had no verdict, which is no discovery. Valid where series are independent
    or positively dependent, as series that share a machine are.

    Raises:
        ValueError: a p-value or the rate does not lie between 0 and 1.
    """
    from scipy.stats import false_discovery_control  # Imported here: it takes scipy.stats half a second to load.

    if not 0 < rate < 1:
        raise ValueError(f"the rate of false discoveries is {rate}; it must lie between 0 and 1")
    tested = [value for value in p_values if value is not None]
    for value in tested:
        if not 0 <= value <= 1:
            raise ValueError(f"a p-value is {value}; it must lie from 0 to 1")
    adjusted = iter(false_discovery_control(tested, method="bh").tolist() if tested else [])
    return tuple(value is not None and next(adjusted) <= rate for value in p_values)
