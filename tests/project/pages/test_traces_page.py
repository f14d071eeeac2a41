"""What the page on traces shows of traces that are known is what the command says of them."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cli import main

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "../shared/data/traces"


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no real traces in {TRACES}")
def test_the_shares_of_dlrm_are_those_that_the_command_tells() -> None:
    shown = re.search(r"^    Share of the time in collectives.*?(?=\n\n(?! ))", _page(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    blocks = re.sub("^    ", "", shown[0], flags=re.MULTILINE).split("\n\n")
    assert len(blocks) == 2
    traces = sorted(map(str, TRACES.glob("dlrm_v100_rank*.json.gz")))
    said = CliRunner().invoke(main.observatory, ["analyse", "collectives", *traces], catch_exceptions=False).stdout
    lines = {line.rstrip() for line in said.splitlines()}
    assert [line for block in blocks for line in block.splitlines() if line not in lines] == []


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no real traces in {TRACES}")
def test_the_first_table_is_what_summary_prints_of_one_rank() -> None:
    shown = re.search(r"^    Where each rank's time went.*?(?=\n\n)", _page(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    trace = str(TRACES / "nccl_a100_rank0_of_2.json.gz")
    said = CliRunner().invoke(main.observatory, ["analyse", "summary", trace], catch_exceptions=False).stdout
    table = said.partition("\n\n")[0]
    assert [line.rstrip() for line in re.sub("^    ", "", shown[0], flags=re.MULTILINE).splitlines()] == [
        line.rstrip() for line in table.splitlines()
    ]


def _page() -> str:
    return (ROOT / "docs/guides/traces.md").read_text()
