"""What the blocks of a trace are, as far as it tells: by the phase of the step that took them, and what they outlived.

A trace does not say whose a block is, so that parameters, gradients and the optimizer's state cannot be told apart from
other blocks that stay. What a backward leaves is mostly gradients, what an optimizer leaves mostly its state.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.memory.blocks import Blocks
from collectors.traces.steps.foreground import NOBODY
from collectors.traces.steps.phases import PHASES, Phase, Phases

Category = Literal["activations", "left_by_backward", "left_by_optimizer", "temporary", "other", "older"]
"""temporary: dropped in the phase that took it. older: taken before the trace, as far as the trace tells of it."""

CATEGORIES: tuple[Category, ...] = get_args(Category)

_LEFT_BY: dict[Phase, Category] = {
    "forward": "activations",
    "backward": "left_by_backward",
    "optimizer": "left_by_optimizer",
    "between": "other",
}


def categories_of(blocks: Blocks, phases: Phases) -> NDArray[np.int64]:
    """Per block the index of its category in `CATEGORIES`."""
    taken_in = phases.at(blocks.time_ns[blocks.taken])
    ended_ns = np.append(blocks.time_ns, np.iinfo(np.int64).max)[blocks.ended]
    is_dropped = blocks.ended < blocks.time_ns.size
    left = np.array([CATEGORIES.index(_LEFT_BY[phase]) for phase in PHASES], dtype=np.int64)
    # Before the first phase there is none; "other" stands behind all of them, at the index of `NOBODY`.
    phase_of = np.append(phases.phase, len(PHASES)).astype(np.int64)
    category = np.append(left, CATEGORIES.index("other"))[phase_of[taken_in]]
    is_temporary = is_dropped & (taken_in != NOBODY) & (phases.at(ended_ns) == taken_in)
    return np.where(is_temporary, CATEGORIES.index("temporary"), category)


def held_by_category(blocks: Blocks, category: NDArray[np.int64], held_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """What is held before all changes and after each, (changes + 1, categories) int64, of which the sums are given.

    What no block of the trace explains is older.
    """
    grown = np.zeros((blocks.time_ns.size + 2, len(CATEGORIES)), dtype=np.int64)
    np.add.at(grown, (blocks.taken + 1, category), blocks.size_bytes)
    np.subtract.at(grown, (blocks.ended + 1, category), blocks.size_bytes)
    held: NDArray[np.int64] = grown[:-1].cumsum(axis=0)
    held[:, CATEGORIES.index("older")] = held_bytes - held.sum(axis=1)
    return held
