"""Every dashboard and every group of rules, one line each."""

from __future__ import annotations

from dashboards import pipeline, training_speed
from dashboards.alerts import nightly
from dashboards.alerts.rule import Group
from dashboards.dashboard import Dashboard

DASHBOARDS: tuple[Dashboard, ...] = (training_speed.DASHBOARD, pipeline.DASHBOARD)
GROUPS: tuple[Group, ...] = (nightly.GROUP,)
