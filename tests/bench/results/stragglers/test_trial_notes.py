"""What several trials note is said once, and whose it is where they differ."""

from __future__ import annotations

from bench.results.stragglers import merge_trials


def test_what_all_trials_note_is_said_once_without_their_names() -> None:
    assert list(merge_trials({0: ["one", "other", "one"], 1: ["one", "other"]})) == ["one", "other"]


def test_what_some_trials_note_names_them() -> None:
    assert list(merge_trials({0: [], 1: ["one"], 3: ["one"]})) == ["trial 1 and 3: one"]


def test_of_notes_that_differ_in_numbers_alone_the_worst_is_said() -> None:
    by_trial = {0: ["9 of 54 events"], 1: ["48 of 54 events"], 2: ["10 of 54 events"]}
    assert list(merge_trials(by_trial)) == ["trial 1, the worst of 3: 48 of 54 events"]


def test_notes_of_one_trial_that_differ_in_numbers_are_all_said() -> None:
    notes = ["ranks 0, 1 are on host node1", "ranks 2, 3 are on host node2"]
    assert list(merge_trials({0: notes, 1: notes})) == notes


def test_a_number_with_an_exponent_is_one_number() -> None:
    by_trial = {0: ["within the 1.5e+06 us"], 1: ["within the 250 us"]}
    assert list(merge_trials(by_trial)) == ["trial 0, the worst of 2: within the 1.5e+06 us"]
