"""`make demo` chooses a run by the GPUs that torch sees, and README's lines for a GPU node are understood."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.gpu.rehearsal.recorded import case_of, dry_context

ROOT = Path(__file__).parents[2]
_ON_CPU = "run ddp --device cpu --ranks 2 --trials 3 --with-baseline weak"


def _chosen(folder: Path, gpus: int) -> subprocess.CompletedProcess[str]:
    """Run `make demo` in an environment whose torch sees so many GPUs, and whose `observatory` prints its words."""
    programs = folder / "bin"
    programs.mkdir()
    module = f"class cuda:\n    @staticmethod\n    def device_count():\n        return {gpus}\n"
    (folder / "torch.py").write_text(module)
    for name, text in (("python", f'PYTHONPATH={folder} exec python3 "$@"'), ("observatory", 'echo "chosen: $*"')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (folder / ".installed").touch()
    make = ["make", "--no-print-directory", "demo", f"VENV={folder}"]
    return subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("gpus", "strategy", "ranks", "batch"),
    [(0, "ddp", 2, None), (1, "single", 1, 8), (2, "ddp", 2, 16), (8, "ddp", 8, 64), (16, "ddp", 8, 64)],
)
def test_the_demo_takes_the_gpus_that_torch_sees(
    gpus: int, strategy: str, ranks: int, batch: int | None, tmp_path: Path
) -> None:
    done = _chosen(tmp_path, gpus)
    assert done.returncode == 0, done.stderr
    words, *choices = re.findall(r"^chosen: (.*)$", done.stdout, re.MULTILINE)
    assert [choice.partition(" --")[0] for choice in choices] == ["choose ddp zero1"] * (gpus != 1)
    case = case_of(dry_context(shlex.split(words)).params)
    assert (case.strategy, case.ranks) == (strategy, ranks)
    assert case.device == ("cuda" if gpus else "cpu")
    if batch is None:
        assert words == _ON_CPU
    else:
        assert case.model is not None
        assert (case.model.batch, case.precision) == (batch, "bf16")


def test_each_line_for_a_gpu_node_is_understood() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## On a GPU node\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    (observatory .*?)(?: +#.*)?$", section, re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        context = dry_context(shlex.split(line)[1:])
        if context.info_name == "run" and context.parent is not None and context.parent.info_name == "observatory":
            assert case_of({**context.params, "device": "cuda"}).device == "cuda"
    suites = {line.split()[3] for line in lines if line.startswith("observatory suite run ")}
    assert suites <= {path.stem for path in (ROOT / "bench" / "suite" / "shipped").glob("*.toml")}
