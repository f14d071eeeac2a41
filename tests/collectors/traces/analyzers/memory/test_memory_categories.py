"""What a block is follows from the phase that took it and what it outlived."""

from __future__ import annotations

import numpy as np

from collectors.traces.analyzers.memory import CATEGORIES, HOST, blocks_of, categories_of, held_by_category
from collectors.traces.operators import PHASES, Phases
from tests.collectors.traces.made.changes import changes

# forward from 10, backward from 30, the optimizer from 60, the next step from 100.
STEP = Phases(
    start_ns=np.array([10, 30, 60, 100]),
    phase=np.array([PHASES.index(phase) for phase in ("forward", "backward", "optimizer", "between")], dtype=np.int8),
)


def category(taken_ns: int, ended_ns: int | None) -> str:
    rows = [(taken_ns, 8, 100)] + ([] if ended_ns is None else [(ended_ns, 8, -100)])
    (found,) = categories_of(blocks_of(changes(*rows), HOST), STEP).tolist()
    return CATEGORIES[int(found)]


def test_what_outlives_forward_is_an_activation() -> None:
    assert category(15, 35) == category(15, None) == "activations"


def test_what_is_dropped_in_its_own_phase_is_temporary() -> None:
    assert category(15, 29) == category(31, 59) == category(61, 62) == "temporary"


def test_what_outlives_backward_or_the_optimizer_was_left_by_it() -> None:
    assert category(35, 105) == "left_by_backward"
    assert category(65, None) == "left_by_optimizer"


def test_what_was_taken_between_steps_or_before_all_phases_is_other() -> None:
    assert category(101, None) == category(5, None) == category(5, 6) == "other"


def test_the_categories_of_every_moment_add_up_to_what_is_held() -> None:
    blocks = blocks_of(changes((15, 8, 100), (16, 9, 7), (20, 9, -7), (35, 10, 64), (40, 8, -100), (50, 11, -30)), HOST)
    held_bytes = np.append(0, blocks.change_bytes.cumsum())
    held = held_by_category(blocks, categories_of(blocks, STEP), held_bytes)
    assert held.sum(axis=1).tolist() == held_bytes.tolist() == [0, 100, 107, 100, 164, 64, 34]
    rows = [{name: size for name, size in zip(CATEGORIES, row, strict=True) if size} for row in held.tolist()]
    assert rows == [
        {},
        {"activations": 100},
        {"activations": 100, "temporary": 7},
        {"activations": 100},
        {"activations": 100, "left_by_backward": 64},
        {"left_by_backward": 64},
        {"left_by_backward": 64, "older": -30},
    ]
