"""`make mutants`: small breaks in the product files that a change touches, and those that no quick test sees.

mutmut makes the breaks, each in one function, and runs the tests that call this function. It works on a copy of the
tree, in an environment of its own. The tests of a product file are the quick ones in files that import it, and those
that the change touches.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRATCH = ROOT / ".mutants"
PROGRAM = ROOT / ".venv-mutants" / "bin" / "mutmut"
OURS = ("bench", "collectors", "dashboards", "workloads")
WITH_QUICK_TESTS = ("bench", "collectors", "dashboards", "workloads")
MINUTES = 10.0
PROCESSES = 2
ENDING_S = 30.0
"""How long mutmut may take to end when its time is up."""
BUILT = Path("collectors/traces/reading/_scanner.abi3.so")
"""What the tests need and git ignores."""
_RESULT = re.compile(
    r"^ +(\S+): (killed|survived|no tests|timeout|suspicious|segfault|not checked|skipped)$", re.MULTILINE
)
_SEEN = ("killed", "timeout", "segfault")


def git(*words: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def usual_base() -> str:
    """Return the commit that the change began from: where it left main, or on main itself the last commit."""
    present = git("rev-parse", "HEAD")
    try:
        base = git("merge-base", "main", "HEAD")
    except subprocess.CalledProcessError:  # A checkout without main.
        base = present
    return git("rev-parse", "HEAD~1") if base == present else base


def changed_files(base: str) -> list[str]:
    """Return the Python files that differ from a commit, also those that are not committed yet."""
    changed = git("diff", "--name-only", "--diff-filter=d", base, "--", "*.py").splitlines()
    return sorted({*changed, *git("ls-files", "--others", "--exclude-standard", "--", "*.py").splitlines()})


def is_product(file: str) -> bool:
    """Whether a file belongs to the product and holds code."""
    return file.split("/", 1)[0] in OURS and not file.endswith("__init__.py")


def tests_of(files: Iterable[str]) -> list[str]:
    """Return the files of quick tests that import one of these product files, or else a whole folder.

    The folder is the nearest one of tests that mirrors the file's own: of collectors/dcgm.py it is tests/collectors.
    """
    tests = [path for folder in WITH_QUICK_TESTS for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in tests}
    chosen: set[str] = set()
    for file in files:
        package, _, module = file.removesuffix(".py").replace("/", ".").rpartition(".")
        imports = re.compile(rf"from {package}\.{module} import|from {package} import .*\b{module}\b")
        importing = {test for test, text in texts.items() if imports.search(text)}
        mirrored = (ROOT / "tests" / parent for parent in Path(file).parents)
        chosen |= importing or {str(next(path for path in mirrored if path.is_dir()).relative_to(ROOT))}
    return sorted(chosen)


def copy_tree(files: Sequence[str], tests: Sequence[str]) -> None:
    """Copy what git knows, and what it does not ignore, into an empty folder; write mutmut's settings there."""
    shutil.rmtree(SCRATCH, ignore_errors=True)
    (SCRATCH / "mutants").mkdir(
        parents=True
    )  # Where mutmut looks for modules: missing at its start is missing for good.
    names = git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in [*names, str(BUILT)]:
        if (ROOT / name).is_file():
            (SCRATCH / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, SCRATCH / name)
    others = sorted({name.split("/", 1)[0] for name in names} - {*OURS, "tests", "pyproject.toml"})
    settings = {
        "source_paths": OURS,
        "only_mutate": files,
        "also_copy": [*others, str(BUILT)],
        "pytest_add_cli_args": ("-m", "not slow and not alone and not ray", "-p", "no:cacheprovider"),
        "pytest_add_cli_args_test_selection": tests,
        "use_git_change_detection": ["false"],
        "debug": ["true"],  # Else its log does not say why a test fails.
    }
    lines = ["[mutmut]"]
    for key, values in settings.items():
        lines += [f"{key} =", *(f"    {value}" for value in values)] if len(values) > 1 else [f"{key} = {values[0]}"]
    (SCRATCH / "setup.cfg").write_text("\n".join(lines) + "\n")


def run_mutmut(within_s: float, processes: int) -> bool:
    """Run mutmut for at most this long; return whether it came to its end.

    Raises:
        SystemExit: it failed, which it does where a test fails without any break.
    """
    with (
        tempfile.TemporaryDirectory(prefix="m-", ignore_cleanup_errors=True) as temporary,  # Short, for sockets' paths.
        (SCRATCH / "mutmut.log").open("wb") as log,
    ):
        Path(temporary).chmod(0o711)  # Tests of other users' processes have folders in it.
        # What tests start in processes of their own runs from the copy, too, and is broken as this process is.
        environment = {**os.environ, "PYTHONPATH": str(SCRATCH / "mutants"), "TMPDIR": temporary}
        process = subprocess.Popen(
            [PROGRAM, "run", "--max-children", str(processes)],
            cwd=SCRATCH,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(within_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return False
    if code:
        lines = (SCRATCH / "mutmut.log").read_text(errors="replace").splitlines()
        print("\n".join(lines[-40:]), file=sys.stderr)
        raise SystemExit(f"mutmut ended with code {code}: a test may fail without any break; its log is {log.name}")
    return True


def ask_mutmut(*words: str) -> str:
    """Return what another command of mutmut prints."""
    return subprocess.run([PROGRAM, *words], cwd=SCRATCH, capture_output=True, text=True, check=False).stdout


_DIFFERENCES = """
import json, sys
from mutmut.mutation.diff_apply import get_diff_for_mutant
files = {name: name.rpartition(".")[0].replace(".", "/") + ".py" for name in sys.stdin.read().split()}
print(json.dumps({name: get_diff_for_mutant(name, path=file) for name, file in files.items()}))
"""


def lines_of(mutants: Iterable[str]) -> dict[str, list[str]]:
    """Return the lines that each mutant takes away (-) and adds (+)."""
    python = PROGRAM.with_name("python")
    names = "\n".join(mutants)
    ended = subprocess.run(
        [python, "-c", _DIFFERENCES], cwd=SCRATCH, input=names, capture_output=True, text=True, check=True
    )
    return {
        name: [line for line in shown.splitlines() if re.match(r"[+-](?![+-]{2} )", line)]
        for name, shown in json.loads(ended.stdout).items()
    }


def is_of_words(lines: Sequence[str]) -> bool:
    """Whether a mutant changes nothing but the words of a message: a text with a space in it, of one line."""
    if len(lines) != 2:
        return False
    (before, after), text = (line[1:] for line in lines), re.compile(r'f?"[^"]*"')
    without = (re.sub(text, '""', line) for line in (before, after))
    changed = [old for old, new in zip(text.findall(before), text.findall(after), strict=False) if old != new]
    return len(set(without)) == 1 and bool(changed) and all(" " in old for old in changed)


def report(*, is_whole: bool, minutes: float) -> None:
    """Print which breaks no test saw, and how many were tried."""
    results = dict(_RESULT.findall(ask_mutmut("results", "--all", "true")))
    counts = Counter(results.values())
    survivors = sorted(name for name, status in results.items() if status in ("survived", "suspicious"))
    lines = lines_of(survivors)
    of_words = [name for name in survivors if is_of_words(lines[name])]
    for name in survivors:
        if name not in of_words:
            print(name, *lines[name], sep="\n    ")
    untested = sorted({name.rpartition("__mutmut_")[0] for name, status in results.items() if status == "no tests"})
    for function in untested:
        print(f"none of these tests calls {function}")
    seen = sum(counts[status] for status in _SEEN)
    tried = seen + len(survivors)
    share = f", {100 * len(survivors) / tried:.0f} %" if tried else ""
    print(f"{tried} breaks tried: tests saw {seen}, {len(survivors)} survived{share}")
    if of_words:
        rest = tried - len(of_words)
        share = f"{100 * (len(survivors) - len(of_words)) / rest:.0f} %" if rest else "0 %"
        print(f"{len(of_words)} of them change the words of a message alone, and are not shown; without these {share}")
    if counts["no tests"]:
        print(f"{counts['no tests']} more are in functions that none of these tests calls")
    if not is_whole:
        left = counts["not checked"]
        print(f"{minutes:g} minutes were over: {left} breaks were not tried; MINUTES=30 tries more")
    if survivors:
        print(f"to see a break in its function: cd {SCRATCH.name} && {PROGRAM} show NAME")


def main() -> None:
    """Make mutants of the named files, or of those that a change touches."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("files", nargs="*", help="product files, by default those that differ from --base")
    parser.add_argument("--base", help="a commit, by default where this branch left main, or the last commit on main")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of it (default: %(default)g)")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="at the same time (default: %(default)s)")
    parser.add_argument("--tests", nargs="+", default=[], help="in place of those that import the files")
    words = parser.parse_args()
    changed = changed_files(words.base or usual_base())
    files = words.files or [file for file in changed if is_product(file)]
    if missing := [file for file in files if not (ROOT / file).is_file()]:
        raise SystemExit(f"{missing[0]} is no file of this tree; name product files as git does")
    if not files:
        print("the change touches no product file, so there is nothing to break; name files with FILES=...")
        return
    touched = [] if words.files else [file for file in changed if Path(file).name.startswith("test_")]
    tests = words.tests or sorted({*tests_of(files), *touched})
    print(f"breaking {', '.join(files)}; testing with {', '.join(tests)}", flush=True)
    copy_tree(files, tests)
    is_whole = run_mutmut(60 * words.minutes, words.processes)
    report(is_whole=is_whole, minutes=words.minutes)


if __name__ == "__main__":
    main()
