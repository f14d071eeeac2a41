"""Which fields a GPU is asked for, by its driver."""

from __future__ import annotations

from collections import Counter

import pytest

from collectors.metrics.gpu import GPU_CLOCK_HELD_SECONDS
from collectors.metrics.gpu_health import GPU_NVLINK_ERRORS
from collectors.nvml.fields import fields_of


def _held(driver: str) -> dict[str, int]:
    return {one.labels["reason"]: one.number for one in fields_of(driver) if one.metric is GPU_CLOCK_HELD_SECONDS}


@pytest.mark.parametrize("driver", ["580.82.07", "590.48.01"])
def test_thermal_reasons_have_todays_numbers_where_the_driver_has_them(driver: str) -> None:
    held = _held(driver)
    assert (held["software_thermal"], held["hardware_thermal"], held["hardware_power_brake"]) == (269, 270, 271)


@pytest.mark.parametrize("driver", ["470.57.02", "570.86.10", "575.51.03", "unknown"])
def test_older_drivers_are_not_asked_by_numbers_that_mean_something_else_to_them(driver: str) -> None:
    held = _held(driver)
    assert held["software_thermal"] == 75
    assert not {269, 270, 271} & {one.number for one in fields_of(driver)}


def test_no_field_is_asked_for_twice() -> None:
    fields = fields_of("590.48.01", per_link=18)
    assert max(Counter((one.number, one.scope) for one in fields).values()) == 1


def test_each_link_is_asked_for_both_directions_by_the_field_of_each_kind_of_gpu() -> None:
    links = [one for one in fields_of("590.48.01", per_link=3) if one.scope not in {0, 0xFFFFFFFF}]
    assert {(one.scope, one.labels["direction"], one.number) for one in links} == {
        (link, direction, number)
        for link in (1, 2)
        for direction, number in (("sent", 138), ("sent", 202), ("received", 139), ("received", 204))
    }


def test_fields_share_a_name_where_they_are_one_series_and_only_nvlinks_bytes_are() -> None:
    fields = [one for one in fields_of("590.48.01", per_link=18) if one.states is None]
    names: dict[object, set[str]] = {}
    for one in fields:
        names.setdefault(one.series, set()).add(one.name)
    assert max(Counter(len(same) for same in names.values())) == 1
    assert len(names) == len({one.name for one in fields})
    shared = Counter(one.series for one in fields)
    assert {one.number for one in fields if shared[one.series] > 1} == {138, 139, 202, 204}


def test_errors_of_blackwells_links_are_asked_for_as_sums_over_all_links() -> None:
    asked = {one.labels["kind"]: one for one in fields_of("590.48.01") if one.metric is GPU_NVLINK_ERRORS}
    assert {one.scope for one in asked.values() if one.number > 200} == {0xFFFFFFFF}
    assert (asked["received"].number, asked["link_recovery_failed"].number) == (208, 214)


def test_an_action_that_is_not_known_here_keeps_its_number() -> None:
    (recovery,) = [one for one in fields_of("590.48.01") if one.name == "recovery action"]
    assert recovery.sample("0", 2).labels["action"] == "node_reboot"
    assert recovery.sample("0", 42).labels["action"] == "action_42"
