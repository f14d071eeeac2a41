"""The fake libnvidia-ml.so.1, built with cc, and the environment in which programs load it instead of the driver's."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.nvml.scenes import Scene, as_text
from tests.support.servers import absent_server

SOURCE = Path(__file__).with_name("nvml.c")
NEWEST = 580
"""The newest driver that nvml.c knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeNode:
    """A node of fake GPUs for processes. library: the folder of libnvidia-ml.so.1. scene_file: its answers."""

    library: Path
    scene_file: Path

    def show(self, scene: Scene) -> None:
        """Make the library answer by this scene from now on, also in running processes."""
        new = self.scene_file.with_suffix(".new")
        new.write_text(as_text(scene), encoding="utf-8", errors="surrogateescape")
        new.replace(self.scene_file)

    def environment(self, **more: str) -> dict[str, str]:
        """Return this process's environment with the library and `more`, without CUDA_VISIBLE_DEVICES."""
        own = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        return {**own, "LD_LIBRARY_PATH": str(self.library), "NVML_SCENE": str(self.scene_file), **more}


def build(folder: Path, *, driver: int = NEWEST) -> Path:
    """Build the library of a driver into the folder, and return the folder; skips the test without a compiler."""
    if (compiler := shutil.which("cc")) is None:
        absent_server("cc is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "libnvidia-ml.so.1"
    words = [
        compiler,
        "-std=gnu17",
        "-shared",
        "-fPIC",
        "-O1",
        f"-DDRIVER={driver}",
        "-o",
        str(target),
        str(SOURCE),
        "-pthread",
    ]
    subprocess.run(words, check=True, timeout=120)
    return folder


def fake_node(folder: Path, library: Path, scene: Scene) -> FakeNode:
    """Return a node in the folder, with this scene at first. library: a folder that `build` filled."""
    folder.mkdir(parents=True, exist_ok=True)
    node = FakeNode(library=library, scene_file=folder / "scene.txt")
    node.show(scene)
    return node
