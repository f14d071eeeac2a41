"""PromQL as Grafana sends it, for tests that ask Prometheus without Grafana."""

from __future__ import annotations

import re

_VARIABLE = re.compile(r"\$\{?(?!__)(\w+)\}?")
_WINDOWS = {"$__rate_interval": "1m", "${__interval_ms}": "15000", "$__interval": "15s", "$__range": "1h"}


def with_every_choice(expression: str) -> str:
    """Return the expression as Grafana sends it with "All" chosen everywhere: an hour in steps of 15 s."""
    return with_choices(expression)


def with_choices(expression: str, **chosen: str) -> str:
    """Return the expression as Grafana sends it with these values of variables, and "All" of the others."""
    for name, window in _WINDOWS.items():
        expression = expression.replace(name, window)
    return _VARIABLE.sub(lambda found: _escaped(chosen[found[1]]) if found[1] in chosen else ".*", expression)


def _escaped(value: str) -> str:
    """A text as a regular expression within a quoted one."""
    return re.escape(value).replace("\\", "\\\\")
