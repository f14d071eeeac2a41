"""The house's own rules, where ruff, mypy and import-linter have none."""

from itertools import permutations
from pathlib import Path

import grimp
import pytest

from workloads.cards.card import Card
from workloads.roster import CARDS

ROOT = Path(__file__).parents[1]
OURS = ("bench", "collectors", "dashboards", "workloads")
FILES = sorted(path for folder in OURS for path in (ROOT / folder).rglob("*.py"))


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph(*OURS)


def test_laws_know_nothing_but_the_shape(imports: grimp.ImportGraph) -> None:
    laws = {"workloads.laws", *imports.find_descendants("workloads.laws")}
    known = {name for law in laws for name in imports.find_modules_directly_imported_by(law)}
    assert known - laws <= {"workloads.parts.shape"}
    assert imports.find_modules_directly_imported_by("workloads.parts.shape") == set()


@pytest.mark.parametrize(("one", "other"), list(permutations([card.name for card in CARDS], 2)))
def test_no_strategy_and_no_card_knows_another(one: str, other: str, imports: grimp.ImportGraph) -> None:
    for folder in ("workloads", "workloads.probes", "workloads.cards"):
        names = (f"{folder}.{one}", f"{folder}.{other}")
        if imports.modules.issuperset(names):
            assert not imports.direct_import_exists(importer=names[0], imported=names[1])


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_each_card_has_a_file_of_its_name_and_a_module_that_runs_it(card: Card) -> None:
    name = card.name
    assert (ROOT / "workloads" / "cards" / f"{name}.py").is_file()
    folder = {"training": "workloads", "probe": "workloads/probes"}[card.kind]
    assert (ROOT / folder / f"{name}.py").is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_ascii_and_opens_with_its_idea(path: Path) -> None:
    text = path.read_text(encoding="ascii")
    if path.name == "__init__.py":
        assert text == ""
        return
    assert len(text.splitlines()) <= 500
    assert text.startswith('"""')
    first = text.removeprefix('"""').split('"""')[0].split("\n\n")[0].strip()
    assert first.endswith((".", ":"))
