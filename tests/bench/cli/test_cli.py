"""The command line answers with one line and the right exit code, and loads no more than it needs."""

import errno
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import psutil
import pytest

from bench.cli import main
from bench.engines import local
from bench.errors import InfrastructureFailed, Misuse, interrupt_in_order
from workloads.registry import SPECS

LIGHT = [
    "--help",
    "list",
    "list --format json",
    "list ddp",
    "list --options",
    "run --help",
    "run ddp --device cpu --dry-run",
    "run ddp --on h100x8 --dry-run",
    "list ddp --on h100x8",
    "predict --help",
    "predict ddp --on h100x8",
    "predict ddp --device cpu",
    "suite plan smoke --on h100x8",
    "completion bash",
    "show --help",
    "show",
    "serve --help",
    "analyse --help",
    "doctor --help",
    "dashboards --help",
]


def _environment(home: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(home), "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("words", ["show", "watch -- true", "doctor"])
def test_a_current_folder_that_was_deleted_is_refused_in_one_line(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main.run(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("observatory: the current folder was deleted; change to another one")


def test_the_first_interruption_says_how_to_stop_at_once_which_the_second_does(
    capfd: pytest.CaptureFixture[str],
) -> None:
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in signals]
    try:
        interrupt_in_order()
        for said in ("\nStopping; completed work is kept. Press Ctrl-C again to stop now.\n", ""):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            assert capfd.readouterr().err == said
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def test_light_commands_import_no_torch(tmp_path: Path) -> None:
    """One process for all: the first line with True names the command that loads torch."""
    code = (
        "import sys; from bench.cli.main import run\n"
        "for words in sys.argv[1:]: print(words, run(words.split()), 'torch' in sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code, *LIGHT], capture_output=True, text=True, env=_environment(tmp_path)
    )
    said = [line for line in ended.stderr.splitlines() if line.endswith((" True", " False"))]
    assert said == [f"{words} 0 False" for words in LIGHT], ended.stderr


MISUSE = [
    ("run dpp", 'observatory: strategy "dpp" is unknown; did you mean "ddp"? (`observatory list` shows all)'),
    ("run ddp --ranks 0", "observatory: ranks is 0; it must be 1 or more"),
    (
        "run ddp --ranks 3",
        "observatory: ddp: batch 8 cannot be shared equally by 3 data ranks; --batch 6 or 9 would fit",
    ),
    ("run ddp --shape huge", 'observatory: shape "huge" is unknown; use one of tiny, 125m, 1b, 8b, 70b, 405b'),
    ("run ddp --heads 3", "observatory: shape tiny: width 128 is not divisible by heads 3"),
    ("run ddp --option overlap=1", 'observatory: ddp: option overlap is "1"; it may be true or false'),
    (
        "run ddp --device cuda",
        "observatory: device is cuda, but this machine has no NVIDIA driver; use --device cpu, or check `nvidia-smi`",
    ),
    ("run ddp --limit 0", "observatory: limit is 0; it must be a number of seconds, 1 or more"),
    ("run single --with-baseline weak", "observatory: --with-baseline compares several ranks with one, but ranks is 1"),
    ("run", "observatory: Missing argument 'STRATEGY'. (`observatory run --help`)"),
    ("rum", "observatory: No such command 'rum'. Did you mean 'run'? (`observatory --help`)"),
    ("xyz", "observatory: No such command 'xyz'. (`observatory --help`)"),
    ("show --limit 99999999999999999999", "observatory: Invalid value for '--limit': 99999999999999999999 is not"),
    ("show --strategy dpp", 'observatory: strategy "dpp" is unknown; did you mean "ddp"?'),
    ("list --format xml", "observatory: Invalid value for '--format'"),
    ("show nothing", 'observatory: run "nothing" is unknown'),
]

ALL_IN_ONE = """
import contextlib, io, json, sys
from bench.cli.main import run

answers = {}
for line in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run(line.split())
    answers[line] = [code, out.getvalue(), errors.getvalue(), "torch" in sys.modules]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """Exit code, output and errors of each misuse, and whether torch was loaded then: of one process, one by one."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", ALL_IN_ONE, *(arguments for arguments, _ in MISUSE)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=_environment(tmp_path_factory.mktemp("home")),
    )
    assert ended.stderr == ""
    found: dict[str, list[object]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize(("arguments", "line"), MISUSE)
def test_misuse_is_one_line_and_code_2(arguments: str, line: str, answers: dict[str, list[object]]) -> None:
    code, printed, errors, has_torch = answers[arguments]
    assert (code, printed, has_torch) == (2, "", False)
    assert isinstance(errors, str)
    (said,) = errors.splitlines()
    assert said.startswith(line)


def test_help_of_run_loads_nothing_that_measures_or_keeps(tmp_path: Path) -> None:
    heavy = ("torch", "numpy", "scipy", "sqlalchemy", "rich.console", "workloads.registry", "bench.session")
    code = (
        "import sys; from bench.cli.main import run; run(['run', '--help']);"
        f" print(*(name for name in {heavy} if name in sys.modules), file=sys.stderr)"
    )
    environment = {"XDG_DATA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stderr.strip()) == (0, "")
    assert "\nWhat runs:\n" in ended.stdout


def test_help_lists_each_command_with_its_own_first_line() -> None:
    context = click.Context(main.observatory)
    for name, (_, line) in main.COMMANDS.items():
        command = main.observatory.get_command(context, name)
        assert command is not None
        assert command.help is not None
        assert command.help.splitlines()[0] == line
        # Python 3.13 takes the indentation off a docstring, earlier versions leave it.
        assert "Example:\n  observatory " in inspect.cleandoc(command.help)


def _commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*words, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))


def test_no_help_is_wider_than_80_columns_or_cut_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in ((), *_commands(main.observatory)):
        assert main.run([*words, "--help"]) == 0
        for line in capsys.readouterr().out.splitlines():
            assert len(line) <= 80, line
            assert line.startswith("Usage:") or not re.search(r"\w\.\.\.$", line), line


@pytest.mark.parametrize("words", ["show --setting", "suite run smoke --set", "run ddp --ranks"])
def test_an_option_without_its_value_names_the_help_of_its_command(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(words.split()) == 2
    command = words.removesuffix(f" {words.split()[-1]}").removesuffix(" smoke").removesuffix(" ddp")
    assert capsys.readouterr().err.endswith(f"requires an argument. (`observatory {command} --help`)\n")


def test_list_as_json_has_each_strategy_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [spec["name"] for spec in listed] == [spec.name for spec in SPECS]
    assert [len(spec["options"]) for spec in listed] == [len(spec.options) for spec in SPECS]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Misuse("that is not it"), 2),
        (InfrastructureFailed("the disk is gone"), 4),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("no"), 70),
        (MemoryError(), 4),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a" * 5000), 2),
        (OSError(errno.EACCES, "Permission denied", "/root/x"), 4),
        (OSError(errno.EMFILE, "Too many open files"), 4),
        (OSError(errno.EBADF, "Bad file descriptor"), 70),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_error_has_its_exit_code(
    error: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command(name="broken")
    def broken() -> None:
        raise error

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(main.observatory, "get_command", lambda context, name: broken)
    assert main.run(["list"]) == code
    said = capsys.readouterr().err.strip().splitlines()  # After ^C click ends the terminal's line first.
    assert len(said) == 1
    assert said[0].startswith("observatory: ")
    assert len(said[0]) < 300


def test_a_limit_of_open_files_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def listen(address: str, port: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(local, "listen", listen)
    assert main.run(["run", "single", "--device", "cpu", "--shape", "tiny"]) == 4
    assert "files at once; raise the limit (`ulimit -n`)" in capsys.readouterr().err.splitlines()[-1]


def test_our_own_bug_leaves_a_crash_file_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def explode(context: click.Context, name: str) -> click.Command:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(main.observatory, "get_command", explode)
    assert main.run(["show", "--store", "postgresql://me:hunter2@host/name", "\udcff"]) == 70  # A byte that is no text.
    line = capsys.readouterr().err
    found = re.search(r"(\S+\.txt)", line)
    assert found is not None
    text = Path(found.group(1)).read_text()
    assert "ZeroDivisionError: no" in text
    assert "postgresql://" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("command", ["list", "list --format json", "--help"])
def test_a_reader_that_has_enough_is_no_failure(command: str, tmp_path: Path) -> None:
    line = f"{sys.executable} -P -m bench {command} | true; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_full_disk_behind_standard_output_is_no_bug_of_ours(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here, which is a disk that is always full")
    line = f"{sys.executable} -P -m bench list --format json > /dev/full"
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 4
    assert ended.stderr.startswith("observatory: the disk is full")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("errors", ["2>/dev/full", "2>&-"])
def test_serve_ends_in_order_although_nobody_can_be_told(errors: str, tmp_path: Path) -> None:
    line = f"exec {sys.executable} -P -m bench serve --port 0 {errors}"
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    with subprocess.Popen(["bash", "-c", line], env=environment) as server:
        while not psutil.Process(server.pid).net_connections(kind="tcp"):  # Until it serves.
            assert server.poll() is None
            time.sleep(0.1)
        server.terminate()
        assert server.wait(timeout=60) == 0


def test_without_a_command_the_help_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "\nCommands:\n  list " in said.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed_is_no_bug_of_ours(closed: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -P -m bench list {closed}', sys.executable],
        timeout=120,
        check=False,
        capture_output=True,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
    )
    assert ended.returncode == 0
    assert list(tmp_path.iterdir()) == []
