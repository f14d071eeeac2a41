"""What is read of nccl-tests' files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import Misuse
from bench.report.nccl_tests.reader import Imported, Placement, Row, decode, read
from tests.bench.report.nccl_tests.files import body, document, row


def test_a_file_becomes_rows_in_base_units() -> None:
    imported = decode(document(), "x.json")
    out_of_place = Placement(
        elapsed_s=20.5 * 1e-6,
        algorithm_bytes_per_second=51.15 * 1e9,
        bus_bytes_per_second=89.5125 * 1e9,
        wrong_count=0,
    )
    in_place = Placement(
        elapsed_s=21.25 * 1e-6,
        algorithm_bytes_per_second=49.35 * 1e9,
        bus_bytes_per_second=86.3625 * 1e9,
        wrong_count=0,
    )
    assert imported == Imported(
        source="x.json",
        form=1,
        nccl_version="2.27.3",
        collective="all_reduce",
        ranks=8,
        hosts=("node-a",),
        devices=("NVIDIA H100 80GB HBM3",),
        rows=(Row(size_bytes=1048576, dtype="fp32", reduction="sum", out_of_place=out_of_place, in_place=in_place),),
        notes=(),
    )


@pytest.mark.parametrize("form", [1, 2, 3])
def test_every_version_of_the_form_is_read(form: int) -> None:
    assert decode(document(form=form), "x.json").form == form


def test_keys_that_later_versions_added_do_no_harm() -> None:
    timed = row().replace(
        '"actual_iterations"', '"in_place_per_iter":{"min_us":1.0,"times_us":[1.0]},"actual_iterations"'
    )
    bitwise = timed.replace('"nwrong":0.000000', '"nwrong":0.000000,"bitwise":{"repeats":2,"first_bit":null}')
    assert decode(document(bitwise, form=3), "x.json").rows == decode(document(), "x.json").rows


@pytest.mark.parametrize(
    ("program", "collective"),
    [
        ("all_reduce_perf", "all_reduce"),
        ("\\/opt\\/nccl-tests\\/build\\/alltoall_perf", "all_to_all"),
        ("sendrecv_perf", "send"),
        ("reduce_scatter_perf_mpi", "reduce_scatter"),
        ("hypercube_perf", "hypercube"),
    ],
)
def test_the_collective_is_told_by_the_program(program: str, collective: str) -> None:
    assert decode(document(program=program), "x.json").collective == collective


def test_ranks_are_the_gpus_of_all_processes_although_only_their_first_is_named() -> None:
    assert decode(document(groups=(0, 0), gpus=4), "x.json").ranks == 8


def test_ranks_are_those_of_one_communicator_where_there_are_several() -> None:
    assert decode(document(groups=(0, 1, 0, 1)), "x.json").ranks == 2


@pytest.mark.parametrize(("theirs", "ours"), [("half", "fp16"), ("bfloat16", "bf16"), ("int8", "int8")])
def test_a_type_has_our_name_where_we_have_one(theirs: str, ours: str) -> None:
    assert decode(document(row(dtype=theirs)), "x.json").dtypes == (ours,)


def test_a_collective_that_adds_nothing_has_no_reduction() -> None:
    assert decode(document(row(redop="none")), "x.json").rows[0].reduction is None


def test_a_placement_that_was_not_measured_is_absent() -> None:
    assert decode(document(row(out_of_place="null")), "x.json").rows[0].out_of_place is None


def test_wrong_elements_are_counted_and_absent_where_nobody_looked() -> None:
    (found,) = decode(document(row(out_of_place=body(wrong="7.000000"), in_place=body(wrong="null"))), "x.json").rows
    assert found.out_of_place is not None
    assert found.in_place is not None
    assert (found.out_of_place.wrong_count, found.in_place.wrong_count) == (7, None)


def test_checks_that_failed_are_noted() -> None:
    wrong = row(2097152, in_place=body(wrong="3.000000"))
    data = document(row(), wrong).replace(b'"count":0,"okay"', b'"count":2,"okay"')
    assert decode(data, "x.json").notes == ("OUT OF BOUNDS: 2 of its checks found wrong elements",)


def test_an_error_of_nccl_is_noted() -> None:
    data = document().replace(b'"errors":[""]', b'"errors":["socket closed by\\npeer"]')
    assert decode(data, "x.json").notes == ('NCCL\'s last error was "socket closed by peer"',)


def test_results_that_nobody_checked_are_taken() -> None:
    unchecked = row(out_of_place=body(wrong="null"), in_place=body(wrong="null"))
    assert len(decode(document(unchecked), "x.json").rows) == 1


def test_reductions_are_told_once_each() -> None:
    imported = decode(document(row(), row(redop="max"), row(2097152)), "x.json")
    assert imported.reductions == ("sum", "max")


def test_a_collective_that_reduces_nothing_has_no_reductions() -> None:
    assert decode(document(row(redop="none")), "x.json").reductions == ()


def test_rows_of_no_bytes_are_left_out_with_the_reason() -> None:
    nothing = row(size=0, out_of_place='{"time":4.1,"alg_bw":"nan","bus_bw":"nan","nwrong":null}')
    imported = decode(document(nothing, nothing, row()), "x.json")
    assert len(imported.rows) == 1
    assert imported.notes == ("2 rows of 0 bytes: fewer elements than ranks",)


def test_a_run_that_stopped_keeps_its_whole_rows_and_says_so() -> None:
    cut = '{"size":2097152,"count":524288,"type":"float","redop":"sum","root":"    -1","out_of_place":null}'
    imported = decode(document(row(), cut, form=2, tail="]}"), "x.json")
    assert [found.size_bytes for found in imported.rows] == [1048576]
    assert imported.notes == (
        "1 row without a figure: nccl-tests stopped there",
        "nccl-tests failed, so larger sizes may be missing",
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (document()[:700], "is truncated: it ends at byte 700"),
        (document() + b"}", r"is not JSON: .*trailing characters \(byte \d+\)"),
        (document(row(out_of_place=body().replace("51.15", "inf"))), r"is not JSON: .*\(byte \d+\)"),
        (b"# nThread 1 nGpus 8", r"is not JSON: .*\(byte 0\)"),
        (b"\xff\xfe\x00", r"is not JSON"),
        (b'{"a":' + b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a file of nccl-tests"),
        (b"{}", "is not a file of nccl-tests: .*`version`"),
        (b'{"version": "1.2"}', "is not a file of nccl-tests: .*version"),
        (b'{"version": 1, "traceEvents": []}', "is not a file of nccl-tests"),
        (document(form=4), '"version" is 4; this program reads .* 1 to 3'),
        (document(form=0), '"version" is 0; this program reads .* 1 to 3'),
        (document(program="train.py"), '"args" begins with "train.py"'),
        (document().replace(b'"results":[' + row().encode(), b'"results":['), '"results" holds no figure: its list is'),
        (document(row(size=0)), '"results" holds no figure: 1 row of 0 bytes'),
        (
            document(row(out_of_place=body(wrong="3.000000"), in_place=body(wrong="3.000000"))),
            "holds no correct result, so its times are meaningless; set NCCL_DEBUG=WARN",
        ),
        (
            document(row(out_of_place=body(wrong="null"), in_place=body(wrong="null"))).replace(
                b'"count":0,"okay"', b'"count":2,"okay"'
            ),
            "holds no correct result",
        ),
        (document().replace(b'"errors":[""]', b'"errors":"none"'), "is not a file of nccl-tests: .*errors"),
        (document(row(size=-8)), "is not a file of nccl-tests: .*size"),
        (document(row(in_place=body(key="cpu_time"))), 'in_place: holds "cpu_time", .* without -C'),
        (document(row(in_place=body(time_us=0))), 'in_place: "time" is 0.0; it must be above 0'),
        (document(row(in_place=body(algbw=-1))), "in_place: .*alg_bw"),
        (document(row(in_place=body(wrong="0.5"))), 'in_place: "nwrong" is 0.5'),
        (document(row(in_place=body(wrong='"nan"'))), "in_place: .*nwrong"),
        (document(row(in_place=body().replace("51.150000", "1e305"))), "larger than any measurement"),
        (document(groups=()), "is not a file of nccl-tests: .*devices"),
        (document(gpus=0), "is not a file of nccl-tests: .*ngpus"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(data: bytes, words: str) -> None:
    with pytest.raises(Misuse, match=rf"^x\.json: .*{words}|^x\.json: {words}") as refused:
        decode(data, "x.json")
    assert "\n" not in str(refused.value)


def test_a_file_is_truncated_wherever_it_is_cut() -> None:
    whole = document()
    for end in range(1, len(whole)):
        with pytest.raises(Misuse, match=f"is truncated: it ends at byte {end},"):
            decode(whole[:end], "x.json")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="No such file"):
        read(tmp_path / "no.json")
    with pytest.raises(Misuse, match="Is a directory"):
        read(tmp_path)


def test_a_file_is_read_from_its_path(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(document())
    assert read(tmp_path / "x.json").source == str(tmp_path / "x.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=60), st.integers(0, 2000), st.integers(0, 60))
def test_no_bytes_raise_anything_but_misuse(noise: bytes, at: int, dropped: int) -> None:
    whole = document()
    at %= len(whole)
    _refused_or_read(whole[:at] + noise + whole[at + dropped :])


@given(st.data())
def test_no_value_in_any_place_raises_anything_but_misuse(data: st.DataObject) -> None:
    tree = json.loads(document(row(), row(2097152)))
    place = tree
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(JSON)
        break
    _refused_or_read(json.dumps(tree).encode("utf-8", "surrogatepass"))


def _refused_or_read(data: bytes) -> None:
    try:
        assert decode(data, "x.json").rows
    except Misuse as error:
        assert "\n" not in str(error)  # noqa: PT017  # Either outcome is right; only the refusal's form is checked.
