"""Prometheus's rules: reads rules.yaml.in, fills in the thresholds, and checks names against the catalogue.

The template is a Prometheus rule file; its head explains the keys and placeholders that Prometheus does not have. Knows
neither boards nor Grafana. Not checked: PromQL's grammar, which `promtool check rules` checks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from collectors.metrics.gate import PATTERNS
from collectors.metrics.metric import Metric
from collectors.metrics.registry import METRICS, SHOWN
from collectors.metrics.results import RUN_SCALING_EFFICIENCY
from dashboards.expressions import OWNER_LABELS, TARGET_LABELS
from dashboards.thresholds import AcceptedEfficiency, Thresholds

TEMPLATE = Path(__file__).with_name("rules.yaml.in")

Severity = Literal["critical", "warning"]
Component = Literal["agent", "gpu", "host", "link", "result", "run", "suite"]
"""What is broken, for Alertmanager's routes."""
Duration = Annotated[str, Meta(pattern=r"^\d+[mhd]$")]
_MINUTES = {"m": 1, "h": 60, "d": 1440}


class BadRules(ValueError):
    """The template is wrong; the message names the rule, and what it may be."""


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the template."""


class Labels(_Form, frozen=True, kw_only=True):
    """critical: somebody must act now. warning: somebody should look on the next working day."""

    severity: Severity
    component: Component


class Annotations(_Form, frozen=True, kw_only=True):
    """The alert's texts; Prometheus fills in `{{ $labels.x }}` and `{{ $value }}`."""

    summary: str
    description: str


class Recording(_Form, frozen=True, kw_only=True, omit_defaults=True, rename={"expression": "expr"}):
    """A series that Prometheus computes and stores under a name."""

    record: str
    expression: str
    labels: dict[str, str] = {}


class Alert(_Form, frozen=True, kw_only=True, rename={"name": "alert", "expression": "expr", "hold": "for"}):
    """An alert; the keys that Prometheus does not have come last."""

    name: str
    expression: str
    hold: Duration
    keep_firing_for: Duration | None = None
    labels: Labels
    annotations: Annotations
    queried_description: str = ""
    dashboard: str
    looks_back: Duration = "1h"

    @property
    def runbook(self) -> str:
        """The file name of its runbook in docs/runbooks/: `node-agent-gone.md` for NodeAgentGone."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", self.name).lower() + ".md"


class _Group(_Form, frozen=True, kw_only=True):
    name: str
    interval: Duration
    rules: list[dict[str, Any]]


class _File(_Form, frozen=True, kw_only=True):
    groups: list[_Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that Prometheus evaluates together, in order."""

    name: str
    interval: str
    recordings: tuple[Recording, ...]
    alerts: tuple[Alert, ...]


def minutes(duration: str) -> int:
    """Return a duration of the template in minutes: 90 for `90m`."""
    return int(duration[:-1]) * _MINUTES[duration[-1]]


def load(thresholds: Thresholds, template: str | None = None) -> tuple[Group, ...]:
    """Return the groups of the template with these thresholds, and check each name in them.

    template: its text; None for the shipped template.

    Raises:
        BadRules: it is malformed, or names a threshold, a metric or a label that does not exist.
    """
    import yaml

    try:
        text = TEMPLATE.read_text(encoding="utf-8") if template is None else template
        groups = msgspec.convert(yaml.safe_load(text), _File).groups
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise BadRules(f"{TEMPLATE.name}: {' '.join(str(error).split())}") from None
    values = _values(thresholds)
    filled = [_filled_group(group, values, thresholds.accepted_efficiency) for group in groups]
    recorded = {ACCEPTED, ACCEPTED_OF_RANKS, *(rule.record for group in filled for rule in group.recordings)}
    for group in filled:
        rules: tuple[Recording | Alert, ...] = (*group.recordings, *group.alerts)
        for rule in rules:
            for wrong in _wrong_names(rule, recorded):
                raise BadRules(f"{TEMPLATE.name}: {_name(rule)}: {wrong}")
    return tuple(filled)


def _name(rule: Recording | Alert) -> str:
    return rule.name if isinstance(rule, Alert) else rule.record


def as_yaml(documents: Sequence[Mapping[str, Any]], *, is_stream: bool = False) -> str:
    """Return the documents as YAML, with texts of several lines as blocks. is_stream: separate them by `---`."""
    import yaml

    class Readable(yaml.SafeDumper):
        """Writes a text of several lines as a block, and repeated values without aliases."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def readable(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Readable.add_representer(str, readable)
    text: str = yaml.dump_all(documents, Dumper=Readable, sort_keys=False, width=10_000, explicit_start=is_stream)
    return text


# Thresholds.


def _values(thresholds: Thresholds) -> dict[str, str]:
    """Return the value of each placeholder: `gpus.braked_ratio` and, for ratios, `gpus.braked_percent`."""
    values = dict(PATTERNS)
    for table in ("gate", "efficiency", "suites", "agents", "gpus", "links_of_gpus", "infiniband", "host", "live"):
        for key, value in msgspec.structs.asdict(getattr(thresholds, table)).items():
            name = f"{table}.{key}"
            if isinstance(value, tuple):
                values[name] = "|".join(map(str, value))
            else:
                values[name] = f"{value:g}" if isinstance(value, float) else str(value)
            if key.endswith("_ratio"):
                values[f"{name.removesuffix('_ratio')}_percent"] = f"{100 * value:g}%"
    return values


def _filled_group(group: _Group, values: dict[str, str], entries: tuple[AcceptedEfficiency, ...]) -> Group:
    recordings: list[Recording] = []
    alerts: list[Alert] = []
    for rule in group.rules:
        name = rule.get("alert") or rule.get("record") or f"a rule of the group {group.name}"
        try:
            filled = _filled(rule, values)
            if "alert" in rule:
                alerts.append(msgspec.convert(filled, Alert))
            else:
                recordings.append(msgspec.convert(filled, Recording))
        except (BadRules, msgspec.ValidationError) as error:
            raise BadRules(f"{TEMPLATE.name}: {name}: {error}") from None
    levels = _accepted_levels(entries) if group.name == "nightly" else ()
    return Group(name=group.name, interval=group.interval, recordings=(*levels, *recordings), alerts=tuple(alerts))


def _filled(part: Any, values: dict[str, str]) -> Any:
    """Return a part of a rule with each `${table.key}` replaced by its value."""

    def value_of(placeholder: re.Match[str]) -> str:
        name = placeholder[1]
        if name not in values:
            raise BadRules(f"${{{name}}} is not a threshold{_near(name, values)} (thresholds.toml has them all)")
        return values[name]

    if isinstance(part, dict):
        return {key: _filled(value, values) for key, value in part.items()}
    return re.sub(r"\$\{([^}]*)\}", value_of, part) if isinstance(part, str) else part


ACCEPTED = f"series:{RUN_SCALING_EFFICIENCY.name}:accepted"
ACCEPTED_OF_RANKS = f"series:{RUN_SCALING_EFFICIENCY.name}:accepted_of_ranks"


def _accepted_levels(entries: Iterable[AcceptedEfficiency]) -> Iterator[Recording]:
    """Yield a recording for each accepted level of the thresholds."""
    for entry in entries:
        labels = {"strategy": entry.strategy, "device": entry.device, "scaling": entry.scaling}
        of_ranks = {} if entry.ranks is None else {"ranks": str(entry.ranks)}
        record = ACCEPTED_OF_RANKS if of_ranks else ACCEPTED
        yield Recording(record=record, expression=f"vector({entry.ratio:g})", labels={**labels, **of_ranks})


# Names of metrics and labels.


def _labels_of(metrics: Iterable[Metric]) -> dict[str, tuple[str, ...]]:
    """Return the labels of each metric's series in Prometheus, by its name there."""
    labels = {}
    for metric in metrics:
        own = (*OWNER_LABELS[metric.scope], *metric.labels, *TARGET_LABELS)
        if metric.kind == "histogram":
            labels.update({f"{metric.name}_{part}": own for part in ("sum", "count")})
            labels[f"{metric.name}_bucket"] = (*own, "le")
        else:
            labels[metric.name] = own
    return labels


_LABELS, _LABELS_OF_RECORDED = _labels_of(SHOWN), _labels_of(METRICS)
"""A recorded series has the name of the metric from which it is computed, which may not be shown itself."""
_SERIES = re.compile(
    r"\b(?P<record>series:)?(?P<metric>observatory_\w+)(?P<operation>:\w+)?(?:\{(?P<matchers>[^}]*)\})?"
)
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_USED_IN_TEXT = re.compile(r'\$labels\.(\w+)|(\w+)=%q|\blabel "(\w+)"')
_MADE = re.compile(r'\blabel_(?:join|replace)\(.*?,\s*"(\w+)"', re.DOTALL)


def _wrong_names(rule: Recording | Alert, recorded: set[str]) -> Iterator[str]:
    """Yield what is wrong with the names of metrics and labels in a rule."""
    texts = [rule.expression]
    if isinstance(rule, Alert):
        texts += [rule.annotations.summary, rule.annotations.description, rule.queried_description]
    for name in _metrics_in(rule.expression):
        if name not in _LABELS and not name.startswith("series:") and name != "up":
            yield f"{name} is not a metric of the catalogue{_near(name, _LABELS)} (docs/metrics.md lists all)"
    known = {*TARGET_LABELS, *_MADE.findall(rule.expression)}
    for series in (match for text in texts for match in _SERIES.finditer(text)):
        name, record = series["metric"], f"series:{series['metric']}{series['operation'] or ''}"
        labels = (_LABELS_OF_RECORDED if series["record"] else _LABELS).get(name)
        if series["record"] and record not in recorded:
            yield f"no rule records {record}{_near(record, recorded)}"
        elif labels is None:
            yield f"{name} is not a metric of the catalogue{_near(name, _LABELS)} (docs/metrics.md lists all)"
        else:
            for label in _MATCHER.findall(series["matchers"] or ""):
                if label not in labels:
                    yield f'{name} has no label "{label}"; its labels are {", ".join(labels)}'
            known.update(labels)
    labels_used = [label for listed in _GROUPING.findall(rule.expression) for label in re.findall(r"\w+", listed)]
    labels_used += [label for text in texts[1:] for match in _USED_IN_TEXT.findall(text) for label in match if label]
    for label in labels_used:
        if label not in known:
            yield f'no metric of this rule has the label "{label}"; they have {", ".join(sorted(known))}'


def _metrics_in(expression: str) -> list[str]:
    """Return the names of series in an expression, without PromQL's words, functions, labels, strings and comments."""
    bare = re.sub(r'"[^"]*"|#.*', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", _GROUPING.sub("", bare))
    names = re.findall(r"(?<![\w:.])[A-Za-z_][\w:]*(?![\w:]|\s*\()", bare)
    return [name for name in names if name not in ("and", "or", "unless", "bool", "offset")]


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""
