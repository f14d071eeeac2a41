"""Watched runs by their names and days, and words that may be a job, a run or a folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import Misuse
from bench.store.files import read_small
from bench.store.history import History, NoStoreYet, find_run, is_job, means_folder
from bench.store.summary import Summary
from tests.bench.made.examples import make_case, make_machine, make_summary
from workloads.spec import WATCHED

DAY_NS = 86_400 * 10**9
NOON_NS = 20_030 * DAY_NS + DAY_NS // 2
"""2024-11-03, 12:00 UTC."""


def _watched(run: str, name: str, day: int = 0) -> Summary:
    case = replace(make_case(), strategy=WATCHED, options={"name": name}, model=None)
    return make_summary(run, case=case, started_ns=NOON_NS + day * DAY_NS, scaling=())


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with runs of the jobs train and train_2, and a run of a strategy."""
    url = f"sqlite:///{tmp_path}/history.sqlite"
    with History(url) as history:
        for summary in (
            _watched("first", "train"),
            _watched("second", "train", 2),
            _watched("other", "trainX2", 3),
            make_summary("ddp-1", started_ns=1),
        ):
            history.add(summary, make_machine())
    return url


@pytest.fixture
def history(url: str) -> Iterator[History]:
    with History(url, writable=False) as history:
        yield history


def _run(found: Summary | None) -> str | None:
    return None if found is None else found.run


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("train", "second"),
        ("train@2024-11-03", "first"),
        ("train@2024-11-04", "first"),
        ("train@2024-11-05", "second"),
        ("train@2999-01-01", "second"),
        ("train_2", None),  # No pattern: "_" is not any letter, nor is "%".
        ("trainX2", "other"),
        ("train%", None),
        ('train"', None),
        ("ddp", None),
        ("", None),
    ],
)
def test_a_job_is_the_newest_run_of_its_name_by_the_end_of_a_day(history: History, text: str, run: str | None) -> None:
    assert _run(history.watched(text)) == run


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process's time zone is five hours behind UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
def test_a_day_begins_and_ends_in_utc(url: str) -> None:
    with History(url) as history:
        history.add(
            make_summary("midnight", case=_watched("x", "night").case, started_ns=20_031 * DAY_NS), make_machine()
        )
        assert _run(history.watched("night@2024-11-04")) == "midnight"
        with pytest.raises(
            Misuse, match="the first watched run of night began on 2024-11-04; name that day or a later"
        ):
            history.watched("night@2024-11-03")


@pytest.mark.parametrize("day", ["yesterday", "2024-11-31", "", "0000-01-01"])
def test_what_is_no_day_is_refused(history: History, day: str) -> None:
    with pytest.raises(
        Misuse, match=f'train@{day}: "{day}" is not a day; write NAME@YEAR-MONTH-DAY, for example llama@'
    ):
        history.watched(f"train@{day}")


def test_a_run_is_found_by_its_id_its_beginning_and_then_its_job(history: History) -> None:
    for text, run in (("first", "first"), ("sec", "second"), ("train", "second"), ("train@2024-11-03", "first")):
        assert history.find(text).run == run


def test_an_empty_history_has_no_newest_run(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/empty.sqlite") as history:
        with pytest.raises(Misuse, match=r'run "a" is unknown; the newest in the history are: none$'):
            history.find("a")
        assert history.extent() == (0, None)


# Words that may be a folder


def test_a_folder_hides_no_job_of_its_name_unless_it_holds_a_run(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train", "data", "sub/train"):
        (tmp_path / name).mkdir(parents=True)
    assert not means_folder("train", url)  # The job.
    assert means_folder("data", url)
    assert means_folder("./train", url)  # A path, not a name.
    assert means_folder("sub/train", url)
    assert not means_folder("nowhere", url)
    (tmp_path / "train" / "case.json").write_text("{}")
    assert means_folder("train", url)


def test_without_a_history_each_folder_is_meant_and_no_job_is_known(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/none.sqlite", "mysql://host/db", f"sqlite:///{tmp_path}/no/history.sqlite"):
        assert means_folder(str(tmp_path), url)
        assert not means_folder(str(tmp_path / "nowhere"), url)
        assert not is_job("train", url)
    assert list(tmp_path.iterdir()) == []


def test_only_a_watched_name_is_a_job(url: str) -> None:
    assert [is_job(text, url) for text in ("train", "train@2024-11-03", "train@never", "ddp", "first")] == [
        *(True, True),
        *(False, False, False),
    ]


def test_a_run_of_a_store_is_found_and_a_missing_store_says_what_makes_one(url: str, tmp_path: Path) -> None:
    assert find_run("first", url).run == "first"
    with pytest.raises(Misuse, match='run "first" is unknown; the history has no run yet, `observatory run` makes one'):
        find_run("first", f"sqlite:///{tmp_path}/none.sqlite")
    with pytest.raises(NoStoreYet), History(f"sqlite:///{tmp_path}/none.sqlite", writable=False):
        pass


# Small files


def test_a_small_file_is_read_without_the_mark_that_editors_put_first(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\xef\xbb\xbf")
    assert read_small(path) == b"a = 1\xef\xbb\xbf"


def test_a_file_of_more_than_the_limit_is_refused_and_one_at_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(2 << 20))
    assert len(read_small(path, 2 << 20)) == 2 << 20
    with pytest.raises(Misuse, match=f"{path}: it is larger than 1 MiB, unlike any such file; name another"):
        read_small(path, (2 << 20) - 1)


def test_a_link_is_followed_unless_that_is_not_wanted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read_small(tmp_path / "link") == b"x"
    with pytest.raises(OSError, match="link"):
        read_small(tmp_path / "link", follows_link=False)
