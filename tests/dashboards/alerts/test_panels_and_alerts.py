"""A panel shows what the alert says: both have the same PromQL, but for what is chosen on the page."""

import re

import pytest
import yaml

from dashboards.render import CHECKOUT, RULES
from tests.dashboards.boards import board


def _bare(expression: str) -> str:
    """An expression without what a page's variables choose, without brackets and spaces."""
    of_none_chosen = re.sub(r'\w+=~"\|?\$\w+",?\s*', "", expression)
    return re.sub(r"[\s()]+|\{\}", "", re.sub(r",\s*\}", "}", of_none_chosen))


@pytest.mark.parametrize(
    ("alert", "name", "title"),
    [
        ("GpuLost", "fleet", "GPUs not responding"),
        ("GpuLost", "one-gpu", "Health of each GPU"),
        ("NodeAgentGone", "fleet", "Nodes not responding"),
        ("NodeAgentGone", "one-host", "Health of this node"),
        ("InfinibandPortDown", "fleet", "Ports down"),
        ("InfinibandPortDown", "one-host", "Ports down"),
        ("HostDiskFilling", "fleet", "Disks filling up"),
        ("HostDiskFilling", "one-host", "Health of this node"),
    ],
)
def test_a_panel_asks_for_what_the_alert_asks_for(alert: str, name: str, title: str) -> None:
    rules = [rule for group in yaml.safe_load((CHECKOUT / RULES).read_text())["groups"] for rule in group["rules"]]
    (expression,) = (rule["expr"] for rule in rules if rule.get("alert") == alert)
    fills_up, _, _ = _bare(expression).partition("unlesson" if alert == "HostDiskFilling" else "nothing")
    assert fills_up in _bare(board(name).panel(title).queries[0].expression)
