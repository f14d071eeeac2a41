"""Files that the stack's servers read: those of dashboards/stack with the settings' ports, intervals and paths.

Everything else, for example inhibition, stands only in the shipped files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.serve.stack.passwords import USER, Passwords, hashed
from bench.serve.stack.settings import StackSettings
from dashboards.publishing.publish import RENDERED

SHIPPED = RENDERED.with_name("stack")
LOOPBACK = "127.0.0.1"
JOB = "observatory"
"""Name of the scrape job."""
RULES = "observatory-rules.yaml"
ALERTMANAGER = Path("alertmanager", "alertmanager.yml")
TARGETS = "targets"
"""Folder of target files, which Prometheus reads again when a file changes."""
PROVISIONING = Path("grafana", "provisioning")
_DATA_SOURCE = Path("datasources", "observatory.yaml")
_DASHBOARD_PROVIDER = Path("dashboards", "observatory.yaml")


def files(
    settings: StackSettings,
    targets: Mapping[str, str],
    target_folders: Sequence[Path],
    passwords: Passwords,
    *,
    dashboards: Path = RENDERED,
) -> dict[Path, str]:
    """Return the text of each file, by its path in the stack's folder.

    targets: addresses of the stack's own agents, by name. target_folders: folders of other nodes' target files
    (file_sd). dashboards: folder of the rendered dashboards, as Grafana sees it.
    """
    return {
        Path("prometheus.yml"): _prometheus(settings, target_folders, passwords),
        Path(RULES): (RENDERED / "rules.yaml").read_text(),
        ALERTMANAGER: _alertmanager(),
        Path(TARGETS, "stack.json"): json.dumps(
            [{"targets": [address], "labels": {"__meta_observatory": name}} for name, address in targets.items()]
        ),
        **_web_files("prometheus", passwords.prometheus),
        **_web_files("alertmanager", passwords.alertmanager),
        **_grafana(settings, dashboards, passwords),
    }


def web_file(server: str) -> Path:
    """Return the path of the server's web configuration."""
    return Path(f"{server}-web.yml")


def client_file(server: str) -> Path:
    """Return the path of the client configuration for promtool and amtool (--http.config.file)."""
    return Path(f"{server}-client.yml")


def _web_files(server: str, password: str) -> dict[Path, str]:
    return {
        web_file(server): _as_yaml({"basic_auth_users": {USER: hashed(password)}}),
        client_file(server): _as_yaml({"basic_auth": _credentials(password)}),
    }


def _credentials(password: str) -> dict[str, str]:
    return {"username": USER, "password": password}


def _prometheus(settings: StackSettings, target_folders: Sequence[Path], passwords: Passwords) -> str:
    document = _shipped("prometheus.yml")
    document["global"] |= {
        "scrape_interval": f"{settings.prometheus.scrape_seconds}s",
        # It must not be longer than the interval, and would inherit 10 s.
        "scrape_timeout": f"{min(settings.prometheus.scrape_seconds, 10)}s",
    }
    document["alerting"] = {
        "alertmanagers": [
            {
                "basic_auth": _credentials(passwords.alertmanager),
                "static_configs": [{"targets": [f"{LOOPBACK}:{settings.alertmanager.port}"]}],
            }
        ]
    }
    (job,) = document["scrape_configs"]
    del job["static_configs"]
    folders = (TARGETS, *(path.absolute() for path in target_folders))
    job["file_sd_configs"] = [{"files": [f"{folder}/*.json" for folder in folders]}]
    return _as_yaml(document)


def _alertmanager() -> str:
    """Return the shipped routes and inhibition, with receivers that send nothing, because no recipient is known."""
    document = _shipped(str(ALERTMANAGER))
    del document["templates"]
    document["receivers"] = [{"name": receiver["name"]} for receiver in document["receivers"]]
    return _as_yaml(document)


def _grafana(settings: StackSettings, folder: Path, passwords: Passwords) -> dict[Path, str]:
    """Return Grafana's provisioning, by path. folder: the folder of the rendered dashboards, as Grafana sees it."""
    source = _shipped(str(PROVISIONING / _DATA_SOURCE))
    provider = _shipped(str(PROVISIONING / _DASHBOARD_PROVIDER))
    source["datasources"][0] |= {
        "basicAuth": True,
        "basicAuthUser": USER,
        "secureJsonData": {"basicAuthPassword": passwords.prometheus},
    }
    source["datasources"][0]["url"] = f"http://{LOOPBACK}:{settings.prometheus.port}"
    source["datasources"][0]["jsonData"]["timeInterval"] = f"{settings.prometheus.scrape_seconds}s"
    provider["providers"][0]["options"]["path"] = str(folder)
    return {
        PROVISIONING / _DATA_SOURCE: _as_yaml(source),
        PROVISIONING / _DASHBOARD_PROVIDER: _as_yaml(provider),
    }


def grafana_ini(settings: StackSettings, folder: Path, passwords: Passwords) -> str:
    """Return Grafana's own settings: everybody on this machine may view it, and it sends nothing elsewhere.

    folder: the stack's folder.
    """
    tables: dict[str, dict[str, object]] = {
        "paths": {
            "data": folder / "data" / "grafana",
            "logs": folder / "logs",
            "plugins": folder / "data" / "grafana" / "plugins",
            "provisioning": folder / PROVISIONING,
        },
        "server": {"http_addr": LOOPBACK, "http_port": settings.grafana.port},
        "security": {"admin_password": passwords.grafana},
        "auth.anonymous": {"enabled": "true", "org_role": "Viewer"},
        "analytics": {"reporting_enabled": "false", "check_for_updates": "false", "check_for_plugin_updates": "false"},
        "news": {"news_feed_enabled": "false"},
    }
    return "".join(
        f"[{table}]\n{''.join(f'{key} = {value}{chr(10)}' for key, value in keys.items())}"
        for table, keys in tables.items()
    )


def _shipped(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((SHIPPED / name).read_text())
    return document


def _as_yaml(document: object) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=120)
    return text
