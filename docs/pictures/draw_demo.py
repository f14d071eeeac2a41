"""Draws docs/pictures/demo.svg from runs of the history: python -P docs/pictures/draw_demo.py RUN [RUN ...]"""

import io
import re
import sys
from dataclasses import replace
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from bench.reports.summary import print_summaries
from bench.runs.history import History

WITHOUT_REMOTE_FONTS = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)

console = Console(record=True, width=116, file=io.StringIO(), highlight=False)
with History(writable=False) as history:
    found = [history.find(name) for name in sys.argv[1:]]
console.print("[bold]$ observatory run ddp --ranks 2 --with-baseline weak --option bucket_mb=1")
print_summaries([replace(summary, folder=Path(summary.folder).name) for summary in found], "table", console)
console.save_svg(
    str(Path(__file__).with_name("demo.svg")), title="Parallel Observatory", code_format=WITHOUT_REMOTE_FONTS
)
