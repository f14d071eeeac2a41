"""Marks that a push leaves in each object that it writes, by which the next push sees whether somebody changed it.

A dashboard's mark has a hash of what was sent and the resulting version: if a person saves the dashboard, it gets
another version, even with the mark still in it. The mark of a data source or alert rule is a hash of the values that
were sent. Grafana adds keys to both, so only the keys of a push are hashed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

DASHBOARD_KEY = DATA_SOURCE_KEY = "observatoryPush"
"""Key of the mark in a dashboard, and in a data source's jsonData."""
ALERT_KEY = "__observatory_push__"
"""Annotation with the mark. Grafana leaves annotations with such underscores out of notifications."""

_RULE_KEYS = ("title", "folderUID", "ruleGroup", "condition", "for", "noDataState", "execErrState", "labels")
_QUERY_KEYS = ("refId", "datasourceUid", "relativeTimeRange")
_MODEL_KEYS = ("expr", "expression", "type", "instant", "range")


def of(value: Any) -> str:
    """Return a short hash of a value; equal values have the same."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def of_dashboard(wanted: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the mark of a dashboard that is sent and will have this version."""
    return {"sent": of(wanted), "version": version}


def of_data_source(source: dict[str, Any]) -> str:
    """Return the mark that this data source would have if a push had written it as it is."""
    return of([source.get("type"), source.get("url"), (source.get("jsonData") or {}).get("timeInterval")])


def of_alert(rule: dict[str, Any]) -> str:
    """Return the mark that this alert rule would have if a push had written it as it is."""
    return of(
        [
            [rule.get(key) for key in _RULE_KEYS],
            [
                [[query.get(key) for key in _QUERY_KEYS], [query.get("model", {}).get(key) for key in _MODEL_KEYS]]
                for query in rule.get("data") or []
            ],
            {key: text for key, text in (rule.get("annotations") or {}).items() if key != ALERT_KEY},
        ]
    )
