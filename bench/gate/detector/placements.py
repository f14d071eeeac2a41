"""Placements of a series' trials: how much slower or faster each is, and a night's value corrected for it.

Offsets are relative to the placement that the series began on, whose offset is 0. Each offset has a variance. For a new
placement it follows from how much the known ones differ. A night there says little about the level, so the detector
stays calm until nights on both have shown the offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from bench.gate.detector.night import OUTLIER_SDS, TrialSample, centre
from bench.gate.detector.settings import DetectorSettings


class PlacementOffset(msgspec.Struct, array_like=True, frozen=True):
    """Offset of a placement's logarithms with its variance, and the last night on this placement."""

    offset: float
    variance: float
    last_number: int


class Reduced(msgspec.Struct, frozen=True, kw_only=True):
    """A night's trials as one value. spread: variance among its trials, None if there is only one."""

    log_value: float
    variance: float
    spread: float | None


def prior_variance(placements: Mapping[str, PlacementOffset], settings: DetectorSettings) -> float:
    """Return the variance of a new placement's offset, from the known placements and one value of the prior."""
    learned = [placement.offset**2 + placement.variance for placement in placements.values() if placement.variance > 0]
    return (settings.placement_sd**2 + sum(learned)) / (1 + len(learned))


def reduce_trials(
    trials: Sequence[TrialSample],
    placements: Mapping[str, PlacementOffset],
    trial_variance: float,
    settings: DetectorSettings,
) -> Reduced:
    """Return the robust centre of the trials, without their placements' offsets.

    trial_variance: variance of one trial's error on this night.
    """
    unseen = PlacementOffset(0.0, prior_variance(placements, settings), 0)
    trial_placements = [placements.get(trial.placement, unseen) for trial in trials]
    values = [trial.log_median - place.offset for trial, place in zip(trials, trial_placements, strict=True)]
    combined = centre(values, [trial_variance + place.variance for place in trial_placements])
    # Share of each trial in the centre. Each trial has an error of its own; a placement's trials share its offset's
    # error.
    shares = [
        weight / (trial_variance + place.variance) * combined.variance
        for weight, place in zip(combined.weights, trial_placements, strict=True)
    ]
    variance = sum(
        share * share * trial_variance / weight for share, weight in zip(shares, combined.weights, strict=True)
    )
    if any(place.variance for place in trial_placements):
        by_name: dict[str, float] = {}
        for trial, share in zip(trials, shares, strict=True):
            by_name[trial.placement] = by_name.get(trial.placement, 0.0) + share
        variance += sum(share * share * placements.get(name, unseen).variance for name, share in by_name.items())
    spread = None
    if len(values) > 1:
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return Reduced(log_value=combined.log_value, variance=variance, spread=spread)


def learn_offsets(
    trials: Sequence[TrialSample],
    placements: Mapping[str, PlacementOffset],
    trial_variance: float,
    expected: tuple[float, float],
    number: int,
    settings: DetectorSettings,
) -> dict[str, PlacementOffset]:
    """Return the placements, updated with this night.

    expected: mean and variance of the night's value on the first placement, before its trials. Each offset is learned
    by comparing its trials with `expected` and with the night's trials elsewhere (exact message passing on a star).
    """
    learned = dict(placements)
    if not learned:
        learned[trials[0].placement] = PlacementOffset(0.0, 0.0, number)
    unseen = prior_variance(learned, settings)
    groups = {}
    for name in {trial.placement: None for trial in trials}:
        values = [trial.log_median for trial in trials if trial.placement == name]
        groups[name] = (median(values), trial_variance / len(values))
        placement = learned.get(name, PlacementOffset(0.0, unseen, number))
        learned[name] = PlacementOffset(placement.offset, placement.variance, number)
    before = {name: learned[name] for name in groups}
    for name, (value, error) in groups.items():
        if not before[name].variance:
            continue
        # The night's value without this placement: the mean of all other estimates, weighted by precision.
        peer_values = [expected] + [
            (peer_value - before[peer].offset, peer_error + before[peer].variance)
            for peer, (peer_value, peer_error) in groups.items()
            if peer != name
        ]
        precision = sum(1 / variance for _, variance in peer_values)
        night_value = sum(mean / variance for mean, variance in peer_values) / precision
        placement = before[name]
        deviation = value - night_value - placement.offset
        spread = placement.variance + error + 1 / precision
        if deviation**2 > OUTLIER_SDS**2 * spread:
            continue  # A broken trial or a changed level, not the placement's offset.
        gain = placement.variance / spread
        learned[name] = PlacementOffset(placement.offset + gain * deviation, placement.variance * (1 - gain), number)
    return _newest(learned, settings)


def _newest(placements: dict[str, PlacementOffset], settings: DetectorSettings) -> dict[str, PlacementOffset]:
    """Return the first placement and the most recent ones, so that changing hosts do not fill the state."""
    if len(placements) <= settings.most_placements:
        return placements
    names = sorted(placements, key=lambda name: (placements[name].variance == 0, placements[name].last_number))
    return {name: placements[name] for name in sorted(names[-settings.most_placements :])}
