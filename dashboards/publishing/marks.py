"""What a push leaves in each thing that it writes, by which the next push tells whether somebody changed it since.

A dashboard keeps what was sent and the version that it became: a person who saves it makes another version, even with
the mark still in it. Data sources and alert rules keep a hash of the values that were sent; Grafana adds keys to both,
so that only those that a push gives are hashed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

DASHBOARD_KEY = DATA_SOURCE_KEY = "observatoryPush"
"""Of a dashboard, and of a data source's jsonData."""
ALERT_KEY = "__observatory_push__"
"""An annotation. Grafana leaves those with such underscores out of what it sends to people."""

_RULE_KEYS = ("title", "folderUID", "ruleGroup", "condition", "for", "noDataState", "execErrState", "labels")
_QUERY_KEYS = ("refId", "datasourceUid", "relativeTimeRange")
_MODEL_KEYS = ("expr", "expression", "type", "instant", "range")


def of(value: Any) -> str:
    """Return the same short text for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def of_dashboard(wanted: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the mark of a dashboard that is sent and becomes this version."""
    return {"sent": of(wanted), "version": version}


def of_data_source(source: dict[str, Any]) -> str:
    """Return the mark that this data source would have, had a push written it as it is."""
    return of([source.get("type"), source.get("url"), (source.get("jsonData") or {}).get("timeInterval")])


def of_alert(rule: dict[str, Any]) -> str:
    """Return the mark that this alert rule would have, had a push written it as it is."""
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
