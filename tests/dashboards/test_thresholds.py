"""Thresholds: the shipped file is whole and explained, and a user's file changes what it names, or is refused."""

from __future__ import annotations

import re
import tomllib

import msgspec
import pytest

from dashboards.thresholds import SHIPPED, BadThresholds, Thresholds, changed_by, shipped
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
    assert changed_by(b"", "mine.toml") == shipped()


def test_what_a_file_names_changes_and_the_rest_stays() -> None:
    changed = changed_by(b"[gpus]\nbraked_ratio = 0.25\n", "mine.toml")
    assert changed == msgspec.structs.replace(
        shipped(), gpus=msgspec.structs.replace(shipped().gpus, braked_ratio=0.25)
    )


def test_entries_replace_all_shipped_ones() -> None:
    assert changed_by(b"accepted_efficiency = []", "mine.toml").accepted_efficiency == ()


def test_the_whole_shipped_file_is_a_file_of_this_form() -> None:
    assert changed_by(SHIPPED.read_bytes(), "copy.toml") == shipped()
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
        ("[gpus", "mine.toml is no TOML: "),
        ("x = " + "[" * 5000, "mine.toml: lists and tables are nested more than 16 deep (at line 1)"),
        ("schema_version = 9", "mine.toml: schema_version is 9, and this program knows 1; use the program"),
        ("[gpu]\nbraked_ratio = 1", "mine.toml: gpu is unknown; it may be schema_version, links, "),
        ("gpus = 1", "mine.toml: gpus: expected object, got int"),
        ("[gpus]\nbraked = 1", "mine.toml: gpus: braked is unknown; it may be remembered_hours, news_hours, "),
        ("[gpus]\nbraked_ratio = 1.5", "mine.toml: gpus.braked_ratio: expected float <= 1.0"),
        ("[gpus]\nbraked_ratio = 0", "mine.toml: gpus.braked_ratio: expected float > 0.0"),
        ("[gpus]\nbraked_ratio = nan", "mine.toml: gpus.braked_ratio: expected float > 0.0"),
        ("[efficiency]\ndeviations = inf", "mine.toml: efficiency.deviations: expected float <= 100.0"),
        ("[gpus]\nbraked_ratio = 'x'", "mine.toml: gpus.braked_ratio: expected float, got str"),
        ("[agents]\nwindow_minutes = 1.5", "mine.toml: agents.window_minutes: expected int, got float"),
        ("[agents]\nwindow_minutes = true", "mine.toml: agents.window_minutes: expected int, got bool"),
        ("[gpus]\napplication_xids = [13, 0]", "mine.toml: gpus.application_xids[1]: expected int >= 1"),
        ("[links]\ngrafana = 'grafana:3000'", "mine.toml: links.grafana: expected str matching regex '^https?://"),
        ("[links]\ngrafana = 'http://grafana/'", "mine.toml: links.grafana: expected str matching regex "),
        (_DDP + "rank = 8", "mine.toml: accepted_efficiency[0]: rank is unknown; it may be strategy, device, scaling"),
        (_DDP.replace("cuda", "gpu"), "mine.toml: accepted_efficiency[0].device: invalid enum value 'gpu'"),
        (_DDP + "ranks = 8\n" + _DDP + "ranks = 8", "mine.toml: accepted_efficiency 2: there is an entry for ddp on"),
        ("[[accepted_efficiency]]", "mine.toml: accepted_efficiency[0]: object missing required field strategy"),
    ],
)
def test_what_is_wrong_is_refused_by_file_and_key(text: str, said: str) -> None:
    with pytest.raises(BadThresholds) as refused:
        changed_by(text.encode(), "mine.toml")
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)
