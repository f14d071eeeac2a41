"""The template of the rules: placeholders are filled in, and a name that there is not is refused with its rule."""

from __future__ import annotations

import re
import tomllib

import msgspec
import pytest

from dashboards.render import alert_rule
from dashboards.rules import TEMPLATE, Alert, BadRules, load
from dashboards.thresholds import changed_by, shipped

RULES = """
groups:
- name: gpus
  interval: 1m
  rules:
  - record: series:observatory_gpu_state_info:newest
    expr: max by (gpu) (observatory_gpu_state_info)
  - alert: GpuWrong
    expr: |-
      observatory_gpu_state_info{state="lost"}
      and on (job, instance, gpu) (observatory_gpu_power_watts > ${gpus.braked_ratio})
      # A comment, of whatever words.
      unless on (gpu) series:observatory_gpu_state_info:newest
    for: ${gpus.window_minutes}m
    labels: {severity: warning, component: gpu}
    annotations:
      summary: GPU {{ $labels.gpu }} of {{ $labels.instance }}, more than ${gpus.braked_percent} or ${gpus.node_xids}
      description: '{{ $of := printf "{gpu=%q}" $labels.gpu }}{{ query "observatory_gpu_power_watts" }}'
    dashboard: one-gpu
"""


def _alert(template: str = RULES, thresholds: str = "") -> Alert:
    changes = tomllib.loads(thresholds)
    ((alert,),) = (group.alerts for group in load(changed_by(changes, "mine.toml"), template))
    return alert


def test_thresholds_stand_in_the_place_of_their_names() -> None:
    alert = _alert(thresholds="[gpus]\nwindow_minutes = 7\nbraked_ratio = 0.125\nnode_xids = [48, 79]")
    assert alert.hold == "7m"
    assert "observatory_gpu_power_watts > 0.125" in alert.expression
    assert alert.annotations.summary.endswith("more than 12.5% or 48|79")


def test_a_large_number_is_written_out() -> None:
    template = RULES.replace("${gpus.braked_ratio}", "${links_of_gpus.nvlink_retries}")
    assert "> 123456789)" in _alert(template, "[links_of_gpus]\nnvlink_retries = 123456789").expression


def test_every_threshold_is_one_of_a_rule() -> None:
    used = set(re.findall(r"\$\{(\w+\.\w+)\}", TEMPLATE.read_text()))
    tables = msgspec.to_builtins(shipped())
    keys = {
        f"{table}.{key}"
        for table, values in tables.items()
        if isinstance(values, dict) and table != "links"
        for key in values
    }
    assert keys <= used


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "max by (gpu) (observatory_gpu_state_info)",
            "max by (gpu) (observatory_gpu_sate_info)",
            "series:observatory_gpu_state_info:newest: observatory_gpu_sate_info is not a metric of the"
            " catalogue; did you"
            " mean observatory_gpu_state_info? (docs/metrics.md lists all)",
        ),
        (
            "observatory_gpu_power_watts >",
            "observatory_gpu_power_wats >",
            "GpuWrong: observatory_gpu_power_wats is not a metric of the catalogue; did you mean"
            " observatory_gpu_power_watts? (docs/metrics.md lists all)",
        ),
        (
            "(observatory_gpu_power_watts >",
            "(observatry_gpu_power_watts >",
            "GpuWrong: observatry_gpu_power_watts is not a metric of the catalogue; did you mean"
            " observatory_gpu_power_watts? (docs/metrics.md lists all)",
        ),
        (
            'query "observatory_gpu_power_watts"',
            'query "observatory_gpu_power"',
            "GpuWrong: observatory_gpu_power is not a metric of the catalogue; did you mean"
            " observatory_gpu_power_watts?"
            " (docs/metrics.md lists all)",
        ),
        (
            'state="lost"',
            'states="lost"',
            'GpuWrong: observatory_gpu_state_info has no label "states"; its labels are gpu, state, job, instance,'
            " cluster",
        ),
        (
            "on (job, instance, gpu)",
            "on (job, node, gpu)",
            'GpuWrong: no metric of this rule has the label "node"; they have cluster, gpu, instance, job, state',
        ),
        (
            "of {{ $labels.instance }}",
            "of {{ $labels.node }}",
            'GpuWrong: no metric of this rule has the label "node"; they have cluster, gpu, instance, job, state',
        ),
        (
            "{gpu=%q}",
            "{gpus=%q}",
            'GpuWrong: no metric of this rule has the label "gpus"; they have cluster, gpu, instance, job, state',
        ),
        (
            "(gpu) series:observatory_gpu_state_info:newest",
            "(gpu) series:observatory_gpu_state_info:new",
            "GpuWrong: no rule records series:observatory_gpu_state_info:new; did you mean"
            " series:observatory_gpu_state_info:newest?",
        ),
        (
            "${gpus.braked_ratio}",
            "${gpus.brake_ratio}",
            "GpuWrong: ${gpus.brake_ratio} is not a threshold; did you mean gpus.braked_ratio? (thresholds.toml"
            " has them"
            " all)",
        ),
        ("severity: warning", "severity: warn", "GpuWrong: Invalid enum value 'warn' - at `$.labels.severity`"),
        ("    dashboard: one-gpu\n", "", "GpuWrong: Object missing required field `dashboard`"),
        ("    for:", "    fro:", "GpuWrong: Object contains unknown field `fro`"),
        ("${gpus.window_minutes}m", "ten minutes", "GpuWrong: Expected `str` matching regex"),
        ("interval: 1m", "interval: 60", "Expected `str`, got `int` - at `$.groups[0].interval`"),
        ("  - record:", "  record:", "mapping values are not allowed here"),
    ],
)
def test_what_is_wrong_is_refused_with_the_name_of_the_rule(right: str, wrong: str, said: str) -> None:
    assert right in RULES
    with pytest.raises(BadRules) as refused:
        _alert(RULES.replace(right, wrong))
    assert str(refused.value).startswith(f"rules.yaml.in: {said}")
    assert "\n" not in str(refused.value)


def test_an_alert_on_an_unknown_dashboard_is_refused() -> None:
    alert = _alert(RULES.replace("one-gpu", "one-cpu"))
    with pytest.raises(
        BadRules, match=r'^rules\.yaml\.in: GpuWrong: dashboard "one-cpu" is unknown; it may be [a-z-]+, '
    ):
        alert_rule(alert, shipped().links)
