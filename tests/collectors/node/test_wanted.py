"""How long collectors may take, and how long what they said is shown, follows from the beat."""

import pytest

from collectors.node.registry import PollingConfig


@pytest.mark.parametrize(("beat_s", "all_s", "part_s"), [(0.1, 0.09, 0.08), (1.0, 0.9, 0.5), (60.0, 1.0, 0.5)])
def test_collectors_have_less_than_a_beat_and_their_parts_less_than_they(
    beat_s: float, all_s: float, part_s: float
) -> None:
    polling = PollingConfig(beat_s=beat_s)
    assert (polling.all_within_s(1.0), polling.part_within_s(0.5)) == pytest.approx((all_s, part_s))
    assert polling.part_within_s(0.5) < polling.all_within_s(1.0) < max(beat_s, 1.1)


@pytest.mark.parametrize(("beat_s", "held_s"), [(0.1, 60.0), (20.0, 60.0), (60.0, 180.0)])
def test_what_is_late_is_shown_for_some_beats_at_least(beat_s: float, held_s: float) -> None:
    assert PollingConfig(beat_s=beat_s).held_s(60.0) == held_s
