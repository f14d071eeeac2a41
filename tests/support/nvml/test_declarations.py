"""Compares the fake NVML's declarations with NVIDIA's header nvml.h, of the package nvidia-nvml-dev."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.nvml.library import SOURCE, build
from tests.support.servers import absent_server

OWN = SOURCE.with_name("declarations.h")


@pytest.fixture(scope="module")
def header() -> Path:
    """The folder of NVIDIA's nvml.h."""
    try:
        files = metadata.files("nvidia-nvml-dev") or []
    except metadata.PackageNotFoundError:
        absent_server("nvidia-nvml-dev, which has NVIDIA's nvml.h, is not installed")
    return next(Path(str(path.locate())).parent for path in files if path.name == "nvml.h")


def _compile(*words: str | Path, source: Path = SOURCE) -> None:
    command = ["cc", "-std=gnu17", "-Wall", "-Wextra", "-Werror", *map(str, words), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_function_is_declared_as_nvidias_header_declares_it(header: Path) -> None:
    _compile("-fsyntax-only", "-DNVIDIAS_HEADER", "-isystem", header)


def test_structures_and_numbers_are_those_of_nvidias_header(header: Path, tmp_path: Path) -> None:
    text = OWN.read_text()
    shapes = re.findall(r"typedef (?:struct|union) \{(.*?)\} (nvml\w+);", text, re.DOTALL)
    numbers = [*re.findall(r"(NVML_\w+) = \d+", text), *re.findall(r"#define ((?:NVML_G|nvml)\w+) ", text)]
    assert len(shapes) >= 15
    assert len(numbers) >= 20
    lines = [f'printf("{name} %llu\\n", (unsigned long long){name});' for name in numbers]
    for members, shape in shapes:
        lines.append(f'printf("{shape} %zu\\n", sizeof({shape}));')
        for member in re.findall(r"\b(\w+)(?:\[\w+\])?(?=[,;])", re.sub(r"\{.*?\}", "", members)):
            at = f"offsetof({shape}, {member}), sizeof((({shape} *)0)->{member})"
            lines.append(f'printf("{shape}.{member} %zu %zu\\n", {at});')
    printed = []
    for included in (f'"{OWN}"', "<nvml.h>"):
        program = tmp_path / "shapes.c"
        body = "\n".join(lines)
        program.write_text(
            f"#include {included}\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{body}\n}}\n"
        )
        _compile("-isystem", header, "-o", tmp_path / "shapes", source=program)
        printed.append(subprocess.run([tmp_path / "shapes"], capture_output=True, text=True, check=True).stdout)
    assert printed[0] == printed[1]
    assert "nvmlFieldValue_t.value 32 8" in printed[0]


def test_an_older_drivers_library_lacks_what_came_later(tmp_path: Path) -> None:
    def functions(driver: int) -> set[str]:
        library = build(tmp_path / str(driver), driver=driver) / "libnvidia-ml.so.1"
        return {name.decode() for name in re.findall(rb"nvml\w+", library.read_bytes())}

    old, new = functions(470), functions(580)
    assert {"nvmlGpmMetricsGet", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMarginTemperature"} <= new - old
