"""What the command makes of the old files and of its own names, in the short forms that are committed in expected/.

`python -m tests.old_files.forms` writes them anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from collectors.metrics.registry import METRICS
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.old_files.command import (
    COLLECTIVES,
    DDP,
    GPIPE,
    HERE,
    ROOT,
    SINGLE,
    WRITTEN_AT,
    answer,
    command_group,
    unpack_history,
    unpack_runs,
    words_of_serve,
)

ROWS = 3
"""Of each table of an analysis, so many are compared cell by cell."""
_WAIT_S = 60.0
CASES = (
    "single --ranks 1",
    "ddp --ranks 2",
    "zero1 --ranks 2",
    "zero2 --ranks 2",
    "fsdp --ranks 2",
    "hsdp --ranks 4",
    "deepspeed --ranks 2",
    "parameter_server --ranks 2",
    "tensor_parallel --ranks 2",
    "pipeline_naive --ranks 2",
    "gpipe --ranks 2",
    "one_f_one_b --ranks 2",
    "interleaved --ranks 2",
    "zero_bubble --ranks 2",
    "ring_attention --ranks 2",
    "ulysses --ranks 2",
    "three_d --ranks 4",
    "collectives --ranks 2",
    "all_reduce --ranks 2",
    "matmul --ranks 1",
    "copies --ranks 1",
    # An option that came later is in a key only where it is set.
    "interleaved --ranks 2 --option defer_receives=true --option microbatches=8",
)
"""Command lines of one case of each strategy, and of an option that came later."""
OLD_DEFAULTS = ["--option", "bucket_mb=25"]
WITH_BUCKETS = ("ddp", "zero1", "ring_attention", "ulysses", "three_d")
"""Strategies whose buckets had 25 MiB where the user chose no size; now about eight hold a small model's gradients."""


def of_place(text: str, folder: Path) -> str:
    """The text as if the folder lay where the old files were written."""
    return text.replace(str(folder), WRITTEN_AT)


def analyses(runs: Path, store: str) -> dict[str, Any]:
    """Each analysis of old windows, and one of a trace that torch.profiler wrote."""
    places = ("--runs", runs, "--store", store, "--format", "json")
    lone = ("summary", "kernels", "idle", "collectives", "stragglers", "critical-path", "memory")
    found = {name: _condensed(answer("analyse", name, DDP, *places)) for name in lone}
    found["diff"] = _condensed(answer("analyse", "diff", SINGLE, DDP, *places))
    trace = runs / SINGLE / "rank0.trace.json.gz"
    return found | {"summary of a trace": _condensed(answer("analyse", "summary", trace, *places))}


def _condensed(text: str) -> dict[str, Any]:
    """An analysis's JSON without sentences, and with the first rows of each table."""
    document = json.loads(text)
    return {
        "fields": sorted(document),
        "schema_version": document["schema_version"],
        "analysis": document["analysis"],
        "traces": [trace | {"file": Path(trace["file"]).name} for trace in document["traces"]],
        "tables": [
            {
                "fields": sorted(table),
                "name": table["name"],
                "columns": {column["name"]: column["unit"] for column in table["columns"]},
                "rows": len(table["rows"]),
                "first": table["rows"][:ROWS],
            }
            for table in document["tables"]
        ],
    }


_FIGURES = {form.name for metric in METRICS if metric.scope == "run" for form in metric.shown()}
_STEP = RUN_STEP_SECONDS.statistic("median").name


def exposition(runs: Path, store: str) -> dict[str, Any]:
    """What `serve` shows of the old history, and of a run that goes on: all values of ranks, and names of results."""
    (runs / GPIPE / "summary.json").unlink()
    with _as_its_runner(runs / GPIPE), _served("--port", "0", "--runs", runs, "--store", store) as address:
        lines: list[str] = []
        until = time.monotonic() + _WAIT_S
        while time.monotonic() < until and not _is_whole(lines):
            with urllib.request.urlopen(address, timeout=_WAIT_S) as page:
                lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    results: dict[str, list[str]] = {}
    for line in lines:
        name = line.partition("{")[0]
        if name in _FIGURES:
            results[name] = sorted(re.findall(r'(\w+)="', line))
    return {
        "live": sorted(line for line in lines if 'slot="' in line),
        "results": dict(sorted(results.items())),
        "info": sorted(line for line in lines if line.startswith("observatory_result_info{")),
    }


def _is_whole(lines: list[str]) -> bool:
    return any('rank="1",slot="' in line for line in lines) and any(line.startswith(_STEP) for line in lines)


@contextlib.contextmanager
def _as_its_runner(folder: Path) -> Iterator[None]:
    """Hold the lock by which others know that a run goes on."""
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _served(*words: str | Path) -> Iterator[str]:
    with subprocess.Popen(words_of_serve(*words), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        try:
            assert run.stderr is not None
            yield run.stderr.readline().split()[1]
        finally:
            run.kill()


def strategies() -> dict[str, Any]:
    """Each strategy's kind and versions, and its options with their defaults."""
    return {
        found["name"]: {
            "fields": sorted(found),
            "kind": found["kind"],
            "version": found["version"],
            "cuda_version": found["cuda_version"],
            "options": {option["name"]: option["default"] for option in found["options"]},
        }
        for found in json.loads(answer("list", "--format", "json"))
    }


def case_keys() -> dict[str, str]:
    """The key of the case of each command line of CASES."""
    keys = {}
    for words in CASES:
        set_now = OLD_DEFAULTS if words.split()[0] in WITH_BUCKETS else []
        line = [*words.split(), *set_now, "--device", "cpu", "--dry-run", "--format", "json"]
        (found,) = json.loads(answer("run", *line))
        keys[words] = found["key"]
    return keys


def commands() -> dict[str, Any]:
    """Each command's arguments and options: the words that it may be, where it is a choice, and its variable."""
    group = command_group()
    return dict(_commands(group, click.Context(group, info_name="observatory", **group.context_settings)))


def _commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, Any]]:
    # Without --help: click keeps that option from the first context that asked for it, which may be another test's.
    options = [option for option in command.get_params(context) if "--help" not in option.opts]
    yield context.command_path, {_name(option): _choices(option) for option in options}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, click.Context(found, info_name=name, parent=context))


def _name(option: click.Parameter) -> str:
    if isinstance(option, click.Argument):
        return option.human_readable_name
    return " ".join(
        (*option.opts, *option.secondary_opts, *([option.envvar] if isinstance(option.envvar, str) else []))
    )


def _choices(option: click.Parameter) -> list[str]:
    return [str(choice) for choice in option.type.choices] if isinstance(option.type, click.Choice) else []


def metric_names() -> list[str]:
    """All metrics of the page that is made from the catalogue."""
    return sorted(set(re.findall(r"`(observatory_\w+)[`{]", (ROOT / "docs" / "metrics.md").read_text())))


def expected(name: str) -> Any:
    """What is committed under this name."""
    return json.loads((HERE / "expected" / f"{name}.json").read_text())


def differences(old: Any, new: Any, place: str = "") -> list[str]:
    """Where two values differ by more than the last digits of a float."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = [f"{place}: {name} is on one side only" for name in old.keys() ^ new.keys()]
        return lines + [
            line for name in old.keys() & new.keys() for line in differences(old[name], new[name], f"{place}/{name}")
        ]
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return [f"{place}: {len(old)} were there, and {len(new)} are"]
        return [
            line
            for index, pair in enumerate(zip(old, new, strict=True))
            for line in differences(*pair, f"{place}/{index}")
        ]
    if isinstance(old, float) and isinstance(new, float) and math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12):
        return []
    return [] if old == new and type(old) is type(new) else [f"{place}: was {old!r}, is {new!r}"]


def _lines(value: Any) -> str:
    """JSON with a line for each item, so that a change of one is seen and the file is small."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]\n"
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()) + "\n}\n"


def _write(folder: Path) -> None:
    os.environ["XDG_DATA_HOME"] = str(folder / "home")
    runs, store = unpack_runs(folder), f"sqlite:///{unpack_history(folder)}"
    places = ("--runs", runs, "--store", store)
    texts = {
        "show.csv": answer("show", "--format", "csv", *places),
        "timeline.json": answer("show", GPIPE, "--timeline", "--format", "json", *places),
        "timeline.csv": answer("show", GPIPE, "--timeline", "--format", "csv", *places),
        "summary-steps.csv": answer("analyse", "summary", DDP, "--table", "steps", "--format", "csv", *places),
    }
    answer("show", COLLECTIVES, "--export", folder / "export", *places)
    texts |= {path.name: path.read_text() for path in (folder / "export").iterdir()}
    values = {
        "analyses": analyses(runs, store),
        "strategies": strategies(),
        "case_keys": case_keys(),
        "commands": commands(),
        "metric_names": metric_names(),
        "exposition": exposition(runs, store),
    }
    texts |= {f"{name}.json": _lines(value) for name, value in values.items()}
    for name, text in texts.items():
        (HERE / "expected" / name).write_text(of_place(text, folder))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        _write(Path(name))
