"""The wheel is whole: installed outside the repository, it measures and renders dashboards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_installed_wheel_runs_ddp_outside_the_repository(tmp_path: Path) -> None:
    wheels, site, elsewhere = tmp_path / "wheels", tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    python = [sys.executable, "-m"]
    subprocess.run(
        [*python, "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = wheels.glob("*.whl")
    subprocess.run(
        [*python, "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)],
        check=True,
        capture_output=True,
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "XDG_DATA_HOME": str(tmp_path / "home")}
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import bench; print(bench.__file__)"],
        cwd=elsewhere,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert where.stdout.strip() == str(site / "bench" / "__init__.py")
    observatory = str(site / "bin" / "observatory")
    planned = subprocess.run(
        [observatory, "suite", "plan", "smoke", "--format=json"],
        cwd=elsewhere,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(planned.stdout)["path"] == str(site / "bench" / "suite" / "shipped" / "smoke.toml")
    render = [observatory, "dashboards", "render", "--into", str(elsewhere)]
    subprocess.run(render, cwd=elsewhere, env=environment, check=True, capture_output=True)
    for rendered in (ROOT / "dashboards" / "rendered").iterdir():
        assert (elsewhere / "dashboards" / "rendered" / rendered.name).read_bytes() == rendered.read_bytes()
    small = ["--layers=1", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--sequence=8", "--steps=3"]
    ended = subprocess.run(
        [observatory, "run", "ddp", "--device=cpu", "--trials=2", "--format=json", *small],
        cwd=elsewhere,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    (summary,) = json.loads(ended.stdout)
    assert (summary["outcome"], summary["trials_done"]) == ("done", 2)
