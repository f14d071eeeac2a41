"""Writes the candidates of a choice as a suite file, for `observatory suite plan` and `suite run`."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from bench.analysis.choosing.candidates import Ranking
from bench.case import options_set
from bench.errors import Misuse
from bench.session.shape_file import is_shape_file
from collectors.files import replace_file
from workloads.cost_models.shape import DIMENSIONS, PRESETS
from workloads.spec import OptionValue


def write_suite(path: Path, ranking: Ranking, *, shape_name: str, command: str) -> None:
    """Write the candidates as cases of one block, the first candidate with the highest importance.

    shape_name: a preset, or the path of a config.json. command: the one that made the choice, for the file's first
        line.

    Raises:
        Misuse: there is no candidate, or the file cannot be written.
    """
    if not ranking.candidates:
        raise Misuse(f"-o {path}: nothing fits, so there is no case to write; leave -o out to see what comes nearest")
    text = suite_text(ranking, shape_name=shape_name, folder=path.parent, command=command)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise Misuse(f"-o {path}: {error.strerror}; name a file in a folder that you can write") from None


def suite_text(ranking: Ranking, *, shape_name: str, folder: Path, command: str) -> str:
    """Return the text of the suite file. folder: of the file, to which a config.json's path is relative."""
    first = ranking.candidates[0].case
    shape = os.path.relpath(shape_name, folder) if is_shape_file(shape_name) else shape_name
    # The batch, and dimensions that the shape's preset does not have.
    preset = PRESETS.get(shape_name)
    dimensions = [
        name
        for name in DIMENSIONS
        if name == "batch" or preset is None or getattr(preset, name) != getattr(first.shape, name)
    ]
    lines = [
        f"# Candidates of `{command}`, best predicted first. Made by observatory; change it freely.",
        "schema_version = 1",
        f"description = {_toml('The best predicted setups of ' + shape_name + '.')}",
        "",
        "[defaults]",
        f"device = {_toml(first.device)}",
        f"backend = {_toml(first.backend)}",
        f"ranks = {first.ranks}",
        f"precision = {_toml(first.precision)}",
        f"shape = {_toml(shape)}",
        *(f"{name} = {getattr(first.shape, name)}" for name in dimensions),
        'block = "candidates"',
    ]
    if first.device == "cuda":
        lines.append(f"needs = {{ gpus = {-(-first.ranks // first.nodes)}, nodes = {first.nodes} }}")
    counts: Counter[str] = Counter()
    total = len(ranking.candidates)
    for place, candidate in enumerate(ranking.candidates):
        case = candidate.case
        counts[case.strategy] += 1
        number = counts[case.strategy]
        lines += ["", f"[case.{case.strategy}{'' if number == 1 else f'-{number}'}]"]
        if number > 1:
            lines.append(f"strategy = {_toml(case.strategy)}")
        lines.append(f"importance = {total - place}")
        if options := options_set(case):
            inner = ", ".join(f"{name} = {_toml(value)}" for name, value in options.items())
            lines.append(f"options = {{ {inner} }}")
    return "\n".join(lines) + "\n"


def _toml(value: OptionValue) -> str:
    return json.dumps(value)
