"""Whoever reads a file that a user may name, or that lies in a run's folder, opens it by `open_regular`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
READERS = ("read_text", "read_bytes")
MAY_READ_OTHERWISE = {
    "the opening itself": {"collectors/files.py"},
    "files of the system, in /proc and /sys": {
        "bench/machine/doctor/node_state.py",
        "bench/serve/stack/processes.py",
        "bench/machine/container.py",
        "bench/machine/device_checks.py",
        "bench/machine/machine.py",
        "bench/machine/node_now.py",
        "bench/machine/preflight.py",
        "bench/machine/limits/network_names.py",
        "bench/machine/limits/process_limits.py",
        "bench/rank/fault_commit.py",
        "collectors/dcgm.py",
        "collectors/files.py",
        "collectors/host/procfs.py",
        "collectors/rank/action_clock.py",
        "collectors/rank/memory.py",
        "collectors/sockets.py",
        "collectors/watch/observatory_watch_process.py",
    },
    "settings next to the hook, in a user's interpreter, which has none of our packages": {
        "collectors/watch/observatory_watch_hooks.py",
        "collectors/watch/observatory_watch_window.py",
    },
    "files that come with this program": {
        "bench/engines/node/known_messages.py",
        "bench/serve/stack/files.py",
        "bench/cli/watching/runbook.py",
        "dashboards/publishing/publish.py",
        "dashboards/rules.py",
        "dashboards/thresholds.py",
    },
    "what pip recorded of this program": {
        "bench/session/checkouts.py",
    },
    "files that this process has just made": {
        "bench/engines/local.py",
        "bench/engines/ray/engine.py",
        "bench/engines/slurm/allocation.py",
        "collectors/rank/profiler.py",
        "collectors/watch/observatory_watch_tracer.py",
    },
    "traces, which may come through a pipe": {
        "bench/cli/analyse.py",
        "bench/analysis/traces/inputs.py",
        "collectors/traces/reading/json_chunks.py",
    },
}
ALLOWED = frozenset().union(*MAY_READ_OTHERWISE.values())


def _opens_to_read(call: ast.Call) -> bool:
    """Whether the call reads a file by its name: path.read_text(), path.open(), open(path, "rb")."""
    function = call.func
    name = ast.unparse(function).rpartition(".")[2]
    if name in READERS:
        return True
    if name != "open" or (isinstance(function, ast.Attribute) and ast.unparse(function.value) == "os"):
        return False
    if any(keyword.arg == "fileobj" for keyword in call.keywords):
        return False
    # Other things are opened, too: a path takes a mode first, and the built-in function takes it second.
    modes = call.args[0 if isinstance(function, ast.Attribute) else 1 :]
    given = [*modes[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    if given:
        return isinstance(given[0], ast.Constant) and str(given[0].value) in ("r", "rb", "rt")
    return True


def test_named_files_are_opened_by_open_regular() -> None:
    found = {
        f"{name}:{node.lineno}: {ast.unparse(node)}"
        for folder in ("bench", "collectors", "dashboards")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (name := path.relative_to(ROOT).as_posix()) not in ALLOWED
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _opens_to_read(node)
    }
    assert not found, "use collectors.files.open_regular, which refuses pipes and devices"


def test_each_file_that_may_read_otherwise_exists() -> None:
    assert [name for name in sorted(ALLOWED) if not (ROOT / name).is_file()] == []
