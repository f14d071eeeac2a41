"""The table of alerts says what each is of: its node, GPU and run, and all else in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboards.boards import board
from tests.stack.alerts.rehearsal import Rehearsal
from tests.support.grafana_expressions import with_choices

pytestmark = pytest.mark.stack

TABLE = board("what-needs-me-now").panel("Firing alerts")
WORDS = {
    "RunStalled": ({"strategy": "ddp", "ranks": "8", "run": "a"}, "ddp on 8"),
    "RankComputesLonger": ({"strategy": "ddp", "ranks": "8", "run": "a", "rank": "3"}, "ddp on 8 rank 3"),
    "RegressionFound": (
        {"suite": "nightly", "case": "wide", "ranks": "8", "figure": "step", "hardware": "8 x H100"},
        "nightly wide on 8 step 8 x H100",
    ),
    "InfinibandPortDown": ({"instance": "node1:9464", "device": "mlx5_0", "port": "1"}, "mlx5_0 port 1"),
    "HostDiskFull": ({"instance": "node1:9464", "folder": "/data"}, "/data"),
    "GpuXid": ({"instance": "node1:9464", "gpu": "3", "xid": "79"}, "XID 79"),
}


@pytest.mark.parametrize("name", WORDS)
def test_an_alert_is_told_in_words(name: str, tmp_path: Path) -> None:
    labels, words = WORDS[name]
    told = ",".join(f'{label}="{value}"' for label, value in {"alertname": name, **labels}.items())
    series = {f'ALERTS{{alertstate="firing",{told}}}': "1x9", f"ALERTS_FOR_STATE{{{told}}}": "60x9"}
    # A browser shows several spaces as one, and none at the ends.
    alike = f" *{' +'.join(words.split())} *"
    asked = f'label_replace({with_choices(TABLE.queries[0].expression)}, "is_told", "yes", "what", "{alike}")'
    found = {"is_told": "yes", "run": labels.get("run", "")}
    expected = ", ".join(f'{label}="{value}"' for label, value in found.items() if value)
    Rehearsal(series=series, folder=tmp_path).gives(
        f"max by (run, is_told) ({asked})", {f"{{{expected}}}": 240.0}, at_minutes=5
    )


def test_the_run_of_an_alert_leads_to_its_page() -> None:
    assert TABLE.columns["Run"] == "run"
    (link,) = TABLE.looks("Run")["links"]
    assert link["url"].startswith("/d/observatory-one-run?")
    assert link["url"].endswith('&var-run=${__data.fields["run"]}')
