"""Prometheus, Alertmanager and Grafana as containers, by `docker compose`, if their programs are not installed.

They use the host's network, so all addresses are the same as those of the programs. Checked against the schema of
Compose; never run here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.errors import InfrastructureFailed, Misuse
from bench.serve.stack.files import SHIPPED, client_file, web_file
from bench.serve.stack.passwords import FOLDER as PASSWORDS
from bench.serve.stack.settings import StackSettings
from dashboards.publishing.publish import RENDERED

FILE = SHIPPED / "compose.yaml"
ENVIRONMENT = "compose.env"
DASHBOARDS_WITHIN = Path("/var/lib/grafana/dashboards")
"""Path of the dashboards in Grafana's container."""
_START_S = 540
_ASK_S = 30


def check(missing: Sequence[str], target_folders: Sequence[Path]) -> None:
    """Check that containers can replace the missing programs.

    Raises:
        Misuse: targets are outside the stack's folder, where containers do not see them.
        InfrastructureFailed: there is no `docker compose`.
    """
    docker = shutil.which("docker")
    needed = f"not installed: {' and '.join(missing)} (Debian: apt-get install prometheus prometheus-alertmanager)"
    if docker is None:
        raise InfrastructureFailed(f"{needed}, and there is no docker to run them in containers; install either")
    version = subprocess.run([docker, "compose", "version"], capture_output=True, timeout=_ASK_S, check=False)
    if version.returncode:
        raise InfrastructureFailed(f"{needed}, and docker has no plugin `compose`; install either")
    if target_folders:
        raise Misuse(
            f"--targets: containers do not see {target_folders[0]}, and {missing[0]} is not installed; install it"
            " (Debian: apt-get install prometheus prometheus-alertmanager), or leave out --targets"
        )


def environment(settings: StackSettings, folder: Path) -> str:
    """Return the variables of compose.yaml as the text of a file. folder: the stack's."""
    values = {
        "OBSERVATORY_STACK": folder,
        "OBSERVATORY_RULES": folder / "observatory-rules.yaml",
        "OBSERVATORY_DASHBOARDS": RENDERED,
        **{f"OBSERVATORY_{name.upper()}_WEB": folder / web_file(name) for name in ("prometheus", "alertmanager")},
        **{f"OBSERVATORY_{name.upper()}_CLIENT": folder / client_file(name) for name in ("prometheus", "alertmanager")},
        "OBSERVATORY_GRAFANA_PASSWORD": folder / PASSWORDS / "grafana",
        "RETENTION_DAYS": settings.prometheus.retention_days,
        "PROMETHEUS_PORT": settings.prometheus.port,
        "ALERTMANAGER_PORT": settings.alertmanager.port,
        "GRAFANA_PORT": settings.grafana.port,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def up(folder: Path, *, on_notice: Callable[[str], None]) -> None:
    """Start the containers and wait until they are healthy.

    Raises:
        InfrastructureFailed: they do not start.
    """
    on_notice("docker compose starts prometheus, alertmanager and grafana; the first start fetches their images")
    _compose(folder, "up", "--detach", "--wait", limit_s=_START_S)


def down(folder: Path, *, keeps_data: bool) -> None:
    """Stop and delete the containers, and their volumes unless the data is kept.

    Raises:
        InfrastructureFailed: docker fails.
    """
    _compose(folder, "down", "--remove-orphans", *(() if keeps_data else ("--volumes",)), limit_s=_START_S)


def _compose(folder: Path, *words: str, limit_s: float) -> None:
    command = ["docker", "compose", "--file", str(FILE), "--env-file", str(folder / ENVIRONMENT), *words]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except FileNotFoundError:
        raise InfrastructureFailed("docker is no longer on the PATH; the stack's containers keep running") from None
    except subprocess.TimeoutExpired:
        raise InfrastructureFailed(
            f"docker compose {words[0]} takes more than {limit_s:g} s; is its daemon running?"
        ) from None
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["nothing"]
        raise InfrastructureFailed(f"docker compose {words[0]} failed: {lines[-1]}")
