"""Expressions of dashboards as Grafana sends them to Prometheus."""

from collectors.metrics.rank import TOKENS
from tests.support.grafana_expressions import with_every_choice


def test_all_chosen_everywhere_is_what_grafana_would_send() -> None:
    expression = f'rate({TOKENS.name}{{slot=~"$slot"}}[$__rate_interval])'
    assert with_every_choice(expression) == f'rate({TOKENS.name}{{slot=~".*"}}[1m])'
