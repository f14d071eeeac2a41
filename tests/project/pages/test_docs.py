"""What the pages name exists: links, commands, boards, panels, thresholds, metrics, rows of reports, alerts, paths.

Writers help these tests: commands, options and names stand in backquotes or indented blocks, titles of boards in double
quotes, titles of panels in asterisks. The generated page of metrics is tested with the catalogue.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import msgspec
import pytest
import yaml

from bench.analysis.diagnose.observed import KINDS
from bench.cli import main
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED, MISUSE, OUR_BUG, REGRESSION
from bench.gate.detector import detector
from bench.gate.report import WORDS
from bench.rank.messages import FailureCause
from bench.results.comparison import OUTCOMES
from bench.suite import levers
from bench.suite.file import read_suite
from collectors.metrics.registry import METRICS
from tests.bench.made.fake_runs import ddp_summary

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
GENERATED = DOCS / "metrics.md"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
WRITTEN = [page for page in PAGES if page != GENERATED]
RUNBOOKS = sorted((DOCS / "runbooks").glob("*.md"))
INDEX = DOCS / "README.md"


def _id(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Links.


def _without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _without_code(text: str) -> str:
    text = re.sub(r"^ {4}.*$", "", _without_fences(text), flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def _anchors(page: Path) -> set[str]:
    """Anchors as GitHub makes them of headings, and those that the page sets itself."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", _without_fences(text), re.MULTILINE)
    made = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([\w-]+)">', text))


def _links(page: Path) -> Iterator[tuple[Path, str]]:
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text())):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield ((page.parent / path).resolve() if path else page, anchor)


def test_each_link_leads_to_a_file_and_its_anchor() -> None:
    for page in PAGES:
        for path, anchor in _links(page):
            assert path.exists(), f"{page}: {path}"
            if anchor:
                assert anchor in _anchors(path), f"{page}: {path}#{anchor}"


def test_the_index_has_every_page() -> None:
    linked = {path for path, _ in _links(INDEX)}
    assert [_id(page) for page in sorted(DOCS.rglob("*.md")) if page not in {INDEX, *linked}] == []


def test_pages_that_the_product_names_exist() -> None:
    named = {
        name
        for folder in ("bench", "collectors", "dashboards", "workloads")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".toml", ".yml", ".yaml"}
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text())
    }
    assert named
    of_others = {"docs/configuration/configuration.md", "docs/web-configuration.md"}  # Prometheus's.
    assert [name for name in sorted(named - of_others) if not (ROOT / name).exists()] == []


# Commands and options.


def _calls(text: str) -> set[str]:
    """Each call of `observatory` in backquotes or in an indented or fenced line, without what follows it."""
    inline = re.findall(r"`(observatory [^`]*)`", " ".join(text.split()))
    lines = re.findall(r"^(?: {4,}|\$ )?(observatory [a-z].*)$", text, re.MULTILINE)
    return {re.split(r" +#|  |\s[|;>&]", call)[0].strip() for call in (*inline, *lines)}


def _command(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = main.observatory
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        child = command.get_command(click.Context(command), rest[0])
        assert child is not None, rest[0]
        command, rest = child, rest[1:]
    return command, rest


def _options(command: click.Command) -> set[str]:
    known = {"--help"}
    for parameter in command.params:
        known |= {*parameter.opts, *parameter.secondary_opts}
    return known


def _all_commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        names = main.COMMANDS if command is main.observatory else command.list_commands(click.Context(command))
        for name in names:
            child = command.get_command(click.Context(command), name)
            assert child is not None
            yield from _all_commands(child)


def test_each_command_exists_with_its_options() -> None:
    for page in WRITTEN:
        for call in _calls(page.read_text()):
            words = shlex.split(call.replace("...", ""))[1:]
            command, rest = _command(words)
            if "--" in rest:  # What follows is a user's command under `observatory watch`.
                rest = rest[: rest.index("--")]
            given = {word.partition("=")[0] for word in rest if word.startswith("--")}
            assert given <= _options(command), f"{page}: {call}"


FOREIGN = {
    *("--connect", "--exporter", "--host", "--key-file", "--node", "--send-files", "--within"),  # Of the agent.
    *("--folder", "--growth", "--hours", "--judge"),  # Of torchrun's rank, and of benchmarks.
    *(
        "--container-image",
        "--enable-feature",
        "--errorcounters",
        "--exclusive",
        "--gpu-reset",
        "--gpu-bind",
        "--gpus",
        "--gpus-per-node",
        "--gpus-per-socket",
        "--gpus-per-task",
        "--gres",
        "--hpc-job-mapping-dir",
    ),
    *("--batch-size", "--nproc-per-node"),  # Of launchers and of a user's script.
    *("--http.config.file", "--junitxml", "--max-depth", "--pid", "--server-side", "--storage.tsdb.retention.time"),
}
"""Options in the text of programs other than `observatory`."""


def test_options_in_the_text_are_options_of_some_command() -> None:
    known = {option for command in _all_commands(main.observatory) for option in _options(command)} | FOREIGN
    named = {
        option.rstrip(".")
        for page in WRITTEN
        for code in re.findall(r"`([^`]+)`", _without_fences(page.read_text()))
        for option in re.findall(r"(?<!\S)--[a-z][\w.-]*", code)
    }
    assert sorted(named - known) == []


def test_options_of_run_and_suite_run_are_on_a_page() -> None:
    text = " ".join(
        (DOCS / name).read_text()
        for name in ("reference/cli.md", "guides/suites.md", "clusters/README.md", "guides/compare.md")
    )
    named = set(re.findall(r"--[a-z][\w-]*", text))
    for words in (["run"], ["suite", "run"], ["doctor"], ["prune"]):
        command, _ = _command(words)
        hidden = {"--help", "--format"}
        assert {option for option in _options(command) if option.startswith("--")} - hidden <= named, words


@pytest.mark.parametrize("name", ["guides/suites.md", "guides/scaling.md"])
def test_each_whole_suite_of_a_page_is_one(name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)
    suites = [block for block in blocks if "schema_version" in block]
    assert suites
    for text in suites:
        (tmp_path / "suite.toml").write_text(text)
        assert read_suite(tmp_path / "suite.toml").cases


# Boards, panels, thresholds, metrics, alerts.


@cache
def _boards() -> dict[str, set[str]]:
    """Titles of the panels by the title of each rendered board."""

    def panels(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for panel in found:
            yield panel
            yield from panels(panel.get("panels", []))

    boards = (json.loads(path.read_text()) for path in (ROOT / "dashboards" / "rendered").glob("*.json"))
    return {board["title"]: {panel["title"] for panel in panels(board["panels"])} for board in boards}


def _prose(page: Path) -> str:
    return " ".join(_without_code(page.read_text()).split())


def test_each_board_exists() -> None:
    for page in WRITTEN:
        named = set(re.findall(r'"([A-Z][^"]*\?)"', _prose(page)))
        if page in RUNBOOKS:
            named |= set(re.findall(r'[Dd]ashboard "([^"]+)"', _prose(page)))
        assert named <= _boards().keys(), page


def test_each_panel_exists() -> None:
    titles = set().union(*_boards().values())
    said = {"as the model predicts", "more than the model predicts", "missing", "likely", "host bound", "launch gap"}
    for page in (DOCS / "guides/diagnosis.md", *RUNBOOKS):
        named = set(re.findall(r"(?<![*\w])\*([^*]+)\*(?!\*)", _prose(page)))
        assert {name for name in named if name.lower() not in said} <= titles, page


def test_the_page_of_boards_has_them_all() -> None:
    listed = re.findall(r'^\| "([^"]+)" \|', (DOCS / "monitoring" / "watching.md").read_text(), re.MULTILINE)
    assert set(listed) == _boards().keys()


def test_each_threshold_exists() -> None:
    thresholds = tomllib.loads((ROOT / "dashboards" / "thresholds.toml").read_text())
    for page in WRITTEN:
        for table, key in re.findall(r"`([a-z_]+)\.([a-z_]+)`", page.read_text()):
            if isinstance(thresholds.get(table), dict):
                assert key in thresholds[table], f"{page}: {table}.{key}"


def test_each_metric_is_in_the_catalogue() -> None:
    names = {metric.name for metric in METRICS}
    suffixes = r"_(median|low|high|bucket|sum|count)(?=_|$)"
    for page in WRITTEN:
        for name in re.findall(r"`(observatory_[a-z0-9_]+[a-z0-9])`", page.read_text()):
            rows = {name, re.sub(suffixes, "", name), re.sub(r"_(rank|pair)_(p\d+|worst)(?=_|$)", r"_\1", name)}
            assert rows & names or name in GENERATED.read_text(), f"{page}: {name}"


@cache
def _alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "dashboards" / "rendered" / "rules.yaml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def _minutes(duration: str) -> str:
    number = int(duration[:-1])
    return "at once" if number == 0 else f"after {number} minute{'s' if number > 1 else ''}"


def test_a_runbook_says_its_severity_and_how_long_the_alert_waits() -> None:
    for page in RUNBOOKS:
        lines = page.read_text().splitlines()
        rule = _alerts()[lines[0].removeprefix("# ")]
        assert lines[2] == f"**{rule['labels']['severity'].capitalize()}**, fires {_minutes(rule.get('for', '0m'))}."


def test_the_table_of_alerts_has_them_all() -> None:
    text = (DOCS / "monitoring" / "watching.md").read_text()
    listed = text.partition("| about | alerts |")[2].partition("\n\n")[0]
    assert set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+|\bStraggler\b", listed)) == _alerts().keys()
    assert f"{len(_alerts())} Prometheus alerts" in text


# Words and rows of reports, exit codes, paths, dates.


@pytest.mark.parametrize(
    ("page", "head", "words"),
    [
        ("guides/gate.md", "| verdict | meaning | code |", set(WORDS.values())),
        ("reference/detector.md", "| verdict | meaning |", set(get_args(detector.NightVerdict))),
        ("guides/levers.md", "| verdict | when |", set(get_args(levers.Verdict))),
        ("guides/compare.md", "| outcome | when |", {outcome.replace("_", " ") for outcome in OUTCOMES}),
        ("guides/faults.md", "| the cause is |", set(get_args(get_type_hints(FailureCause)["kind"]))),
        ("guides/diagnosis.md", "| kind | what it is |", {kind.replace("_", " ") for kind in KINDS} - {"unknown"}),
    ],
)
def test_the_words_of_a_table_are_those_of_the_product(page: str, head: str, words: set[str]) -> None:
    table = (DOCS / page).read_text().partition(head)[2].partition("\n\n")[0]
    cells = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    plain = [re.sub(r"\[([^]]+)\]\([^)]*\)| \(tier \d\)|`", r"\1", cell) for cell in cells]
    listed = {word for cell in plain for word in cell.split(", ") if not re.fullmatch("[-: ]+", word)}
    assert {re.sub("^imbalance of .*", "imbalance", word) for word in listed} == words


def _rows_of_figures() -> list[re.Pattern[str]]:
    table = (DOCS / "reference" / "figures.md").read_text().partition("## Rows of a run")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (<a id=.*?) \|", table, re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return [re.compile(re.sub(r"\b[A-Z]{4,}\b", ".+", re.escape(name))) for name in names]


def test_each_printed_row_is_defined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that has every figure, shown in full: what stands in its first column is a row of the page."""
    summary = ddp_summary(tmp_path / "runs")
    figures = [
        replace(summary.estimates[0], metric=metric.name, labels={label: f"some_{label}" for label in metric.labels})
        for metric in METRICS
        if metric.name.startswith("observatory_run_")
    ]
    known = {one.metric for one in summary.estimates}
    full = replace(summary, estimates=(*summary.estimates, *(one for one in figures if one.metric not in known)))
    (Path(summary.folder) / "summary.json").write_bytes(msgspec.json.encode(msgspec.to_builtins(full)))
    rows = []
    for words in (["--details"], []):
        assert main.run(["show", summary.folder, "--runs", str(tmp_path / "runs"), *words]) == 0
        table = capsys.readouterr().out.partition("\nranks ")[2].partition("\n\n")[0]
        rows += [re.split(r"  +", line.strip())[0] for line in table.splitlines()[1:]]
    assert len(rows) > 30
    defined = _rows_of_figures()
    assert [row for row in rows if not any(pattern.fullmatch(row) for pattern in defined)] == []


def test_the_page_of_the_command_line_has_every_exit_code() -> None:
    table = (DOCS / "reference/cli.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    wrong = {MISUSE, CASE_FAILED, INFRASTRUCTURE, REGRESSION, OUR_BUG}
    codes = {FINE, INTERRUPTED, *wrong}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes


def test_each_path_in_backquotes_exists() -> None:
    pattern = r"`((?:bench|collectors|dashboards|docs|tests|workloads)/[\w/.-]*[\w/])`"
    made = {"dashboards/rendered/"}
    for page in WRITTEN:
        for name in set(re.findall(pattern, page.read_text())) - made:
            assert (ROOT / name).exists(), f"{page}: {name}"


def test_measurements_with_a_date_or_commit_stand_under_measured() -> None:
    dated = r"\bcommit [0-9a-f]{7,}|[Mm]easured (?:on )?20\d\d-\d\d-\d\d"
    for page in WRITTEN:
        if DOCS / "measured" not in page.parents and page.name != "CHANGELOG.md":
            assert re.findall(dated, _prose(page)) == [], page


def test_readme_is_a_front_door() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert re.findall(r"^ +(make \w+)", text, re.MULTILINE) == ["make demo", "make test"]
    shares = re.findall(r"% \[(-?[\d.]+), ([\d.]+)\]", text)
    assert shares
    assert all(float(high) - float(low) < 80 for low, high in shares)  # None that spans all of a ratio.
