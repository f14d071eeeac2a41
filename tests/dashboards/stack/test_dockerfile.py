"""The image: built from files that are there, by commands that are there, for a user that is not root."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import yaml

from bench.engines.kubernetes.settings import KubernetesSettings

ROOT = Path(__file__).parents[3]
STACK = ROOT / "dashboards" / "stack"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _instructions() -> list[tuple[str, str]]:
    """Each instruction with what follows it, on one line."""
    lines = [line for line in (STACK / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines()]


INSTRUCTIONS = _instructions()


def _of(name: str) -> list[str]:
    return [rest for instruction, rest in INSTRUCTIONS if instruction == name]


def _copied() -> list[str]:
    return [source for rest in _of("COPY") for source in rest.split()[:-1]]


def test_each_instruction_is_one_of_dockers() -> None:
    assert {name for name, _ in INSTRUCTIONS} <= {
        *("FROM", "RUN", "WORKDIR", "COPY", "ARG", "ENV", "USER", "ENTRYPOINT", "CMD"),
    }
    assert INSTRUCTIONS[0][0] == "FROM"


def test_the_base_is_one_release_of_a_python_that_the_project_takes() -> None:
    bases = {rest.split()[0] for rest in _of("FROM")}
    (base,) = bases
    found = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+", base)
    assert found is not None
    assert f"Programming Language :: Python :: {found[1]}" in PROJECT["classifiers"]


def test_what_is_copied_and_mounted_is_there() -> None:
    mounted = [
        mount[1]
        for rest in _of("RUN")
        for mount in re.finditer(r"--mount=type=bind,source=([^, ]+)", rest)  # Those of another stage say `from`.
    ]
    assert mounted == ["constraints.txt"]
    assert [source for source in (*_copied(), *mounted) if not (ROOT / source).exists()] == []


def test_the_extras_are_the_projects() -> None:
    (extras,) = (rest.partition("=")[2] for rest in _of("ARG"))
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_it_runs_the_projects_command_as_nobody() -> None:
    assert _of("ENTRYPOINT") == ['["observatory"]']
    assert "observatory" in PROJECT["scripts"]
    (user,) = _of("USER")
    number = KubernetesSettings(image="x", claim="x").user
    assert user == f"{number}:{number}"
    assert [name for name, _ in INSTRUCTIONS].index("USER") > max(
        place for place, (name, _) in enumerate(INSTRUCTIONS) if name == "RUN"
    )


def _images(document: Any) -> set[str]:
    if isinstance(document, dict):
        own = {document["image"]} if isinstance(document.get("image"), str) else set()
        return own.union(*(_images(value) for value in document.values()))
    return set().union(*(_images(one) for one in document)) if isinstance(document, list) else set()


def test_all_manifests_use_the_image_by_the_name_that_it_is_built_as() -> None:
    (tag,) = re.findall(r"--tag (\S+)", (STACK / "Dockerfile").read_text())
    for file in ("daemonset.yaml", "results.yaml", "nightly-cronjob.yaml"):
        (document,) = yaml.safe_load_all((STACK / file).read_text())
        assert _images(document) == {tag}


def test_the_copied_files_alone_give_a_whole_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", "*.so")
    for name in _copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "bench", "collectors", "dashboards", "workloads"],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    missing = [
        name for name in tracked if name not in names and not name.startswith("collectors/traces/reading/scanner/")
    ]
    assert missing == []
    assert "observatory_watch.py" in names  # Which training scripts import.
