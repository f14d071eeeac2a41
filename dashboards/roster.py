"""Every dashboard and every group of rules, one line each."""

from __future__ import annotations

from dashboards import communication, gpu_health, host_load, pipeline, training_speed
from dashboards.alerts import agent, gpus, nightly
from dashboards.alerts.rule import Group
from dashboards.dashboard import Dashboard

DASHBOARDS: tuple[Dashboard, ...] = (
    training_speed.DASHBOARD,
    communication.DASHBOARD,
    pipeline.DASHBOARD,
    gpu_health.DASHBOARD,
    host_load.DASHBOARD,
)
GROUPS: tuple[Group, ...] = (nightly.GROUP, gpus.GROUP, agent.GROUP)
