"""Thresholds: the shipped file is whole and explained, and a user's file changes what it names, or is refused."""

from __future__ import annotations

import re
import tomllib

import msgspec
import pytest

from collectors.settings_file import BadSettings, read_toml
from dashboards.thresholds import SHIPPED, Thresholds, changed_by, shipped
from workloads.registry import SPECS


def test_each_shipped_value_has_a_line_that_explains_it() -> None:
    lines = SHIPPED.read_text().partition("[[accepted_efficiency]]")[0].splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"[a-z_]+ = ", line)]
    assert keys
    assert [lines[number] for number in keys if not lines[number - 1].startswith("# ")] == ["schema_version = 1"]


def test_shipped_strategies_are_those_of_the_registry() -> None:
    named = {*shipped().live.uneven_strategies, *(entry.strategy for entry in shipped().accepted_efficiency)}
    assert named <= {spec.name for spec in SPECS}


def test_an_empty_file_changes_nothing() -> None:
    assert changed_by({}, "mine.toml") == shipped()


def test_what_a_file_names_changes_and_the_rest_stays() -> None:
    changed = changed_by({"gpus": {"braked_ratio": 0.25}}, "mine.toml")
    assert changed == msgspec.structs.replace(
        shipped(), gpus=msgspec.structs.replace(shipped().gpus, braked_ratio=0.25)
    )


def test_entries_replace_all_shipped_ones() -> None:
    assert changed_by({"accepted_efficiency": []}, "mine.toml").accepted_efficiency == ()


def test_the_whole_shipped_file_is_a_file_of_this_form() -> None:
    assert changed_by(tomllib.loads(SHIPPED.read_text()), "copy.toml") == shipped()
    assert set(tomllib.loads(SHIPPED.read_text())) == set(Thresholds.__struct_fields__)


_DDP = """[[accepted_efficiency]]
strategy = "ddp"
device = "cuda"
scaling = "weak"
ratio = 0.9
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema_version = 9", "schema_version is 9, and this program reads 1; use the version"),
        ("[gpu]\nbraked_ratio = 1", "unknown key 'gpu'; did you mean 'gpus'?"),
        ("gpus = 1", "gpus is 1; it may be a table"),
        ("[gpus]\nbraked = 1", "unknown key 'gpus.braked'; did you mean 'braked_ratio'?"),
        ("[gpus]\nbraked_ratio = 1.5", "gpus.braked_ratio is 1.5; it may be a number above 0 and at most 1"),
        ("[gpus]\nbraked_ratio = 0", "gpus.braked_ratio is 0; it may be a number above 0"),
        ("[gpus]\nbraked_ratio = nan", "gpus.braked_ratio is NaN; it may be a number above 0"),
        (
            "[efficiency]\ndeviations = inf",
            "efficiency.deviations is Infinity; it may be a number above 0 and at most 100",
        ),
        ("[gpus]\nbraked_ratio = 'x'", 'gpus.braked_ratio is "x"; it may be a number above 0 and at most 1'),
        (
            "[agents]\nwindow_minutes = 1.5",
            "agents.window_minutes is 1.5; it may be a whole number of at least 1 and",
        ),
        ("[agents]\nwindow_minutes = true", "agents.window_minutes is true; it may be a whole number"),
        (
            "[gpus]\napplication_xids = [13, 0]",
            "gpus.application_xids[1] is 0; it may be a whole number of at least 1",
        ),
        (
            "[links]\ngrafana = 'grafana:3000'",
            'links.grafana is "grafana:3000"; it may be a URL that begins with http:// or',
        ),
        (
            "[links]\ngrafana = 'http://grafana/'",
            'links.grafana is "http://grafana/"; it may be a URL that begins with',
        ),
        (_DDP + "rank = 8", "unknown key 'accepted_efficiency[0].rank'; did you mean 'ranks'?"),
        (_DDP.replace("cuda", "gpu"), 'accepted_efficiency[0].device is "gpu"; it may be cpu or cuda'),
        (_DDP + "ranks = 8\n" + _DDP + "ranks = 8", "accepted_efficiency 2: there is an entry for ddp on"),
        (
            "[[accepted_efficiency]]",
            "missing key 'accepted_efficiency[0].strategy'; add it (a name of small letters",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_file_and_key(text: str, said: str) -> None:
    with pytest.raises(BadSettings) as refused:
        changed_by(read_toml(text.encode()), "mine.toml")
    assert str(refused.value).startswith(f"mine.toml: {said}")
    assert "\n" not in str(refused.value)
