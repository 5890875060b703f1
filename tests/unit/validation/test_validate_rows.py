"""Rows of measured data: what a cell may hold, which file is of which kind, what a family's figures are."""

from __future__ import annotations

import pytest

from bench.files import KINDS, recognise
from mpsim.errors import CalibrationError
from mpsim.formats.tables import Cells, read_rows, tidied
from mpsim.validate.records import Record, Validation, summarise


def _record(name: str, measured: float | None, predicted: float | None, **more: object) -> Record:
    reason = None if predicted is not None else "no shape"
    return Record(
        id=name,
        family="f",
        kind="kernel",
        unit="us",
        measured=measured,
        predicted=predicted,
        skipped_because=reason,
        **more,
    )


def test_cells_read_numbers_flags_and_blanks() -> None:
    """A blank is None, a number is a number, and absent columns are blank."""
    cells = Cells({"a": " 12 ", "b": "1.5", "c": "", "d": "yes"})
    assert (cells.whole("a"), cells.number("b"), cells.number("c")) == (12, 1.5, None)
    assert (cells.flag("d"), cells.flag("c"), cells.text("e")) == (True, None, "")


@pytest.mark.parametrize(
    ("column", "texts", "plain"),
    [
        ("num_accel", ("1,024", "1 024", "1024 GPUs", " 1024 ", "１０２４"), "1024"),
        ("seq_len", ("8k", "8K", "8,192", "8192 tokens"), "8192"),
        ("vocab", ("32k", "32,000"), "32000"),
        ("nic_gbit_s", ("1.2.3 Gb/s",), "1.2.3 Gb/s"),
        ("input_tokens", ("10k",), "10000"),
        ("params_billion", ("70B", "70 billion", "70.0"), "70"),
        ("params_billion", ("1.04T",), "1040"),
        ("tokens_b", ("15T", "15 trillion tokens", "15,000"), "15000"),
        ("bytes", ("1 GiB", "1G", "1,073,741,824"), "1073741824"),
        ("nic_gbit_s", ("400 Gb/s", "400G", "50 GB/s"), "400"),
        ("request_rate_per_s", ("4 req/s", "4 RPS"), "4"),
        ("tp", ("TP8", "tp=8", "8-way"), "8"),
        ("ep", ("TP8",), "TP8"),
        ("global_batch_seqs", ("4M tokens",), "4M tokens"),
        ("zero_stage", ("ZeRO‑3", "ZeRO–3"), "ZeRO-3"),
        ("notes", ("1,024 GPUs",), "1,024 GPUs"),
    ],
)
def test_cells_are_read_however_they_are_typed(
    column: str, texts: tuple[str, ...], plain: str
) -> None:
    """Separators of thousands, a column's own unit and typography go; another column's stay."""
    for text in texts:
        assert tidied(column, text).removesuffix(".0") == plain, text


@pytest.mark.parametrize("text", ["nan", "inf", "eight", "1.5"])
def test_cells_refuse_what_is_no_whole_number(text: str) -> None:
    """The message names column and value."""
    with pytest.raises(CalibrationError, match="tp is"):
        Cells({"tp": text}).whole("tp")


def test_a_required_cell_that_is_blank_is_not_stated() -> None:
    """What a row leaves out is named."""
    with pytest.raises(CalibrationError, match="micro_batch_seqs is not stated"):
        Cells({"micro_batch_seqs": ""}).required("micro_batch_seqs")


def test_errors_of_a_family_by_hand() -> None:
    """Errors +10, -20, +30 %: mean of sizes 20, median 20, p90 30, bias 6.67, worst +30 of row c; d has none."""
    family = summarise(
        [
            _record("a", 10, 11),
            _record("b", 10, 8),
            _record("c", 10, 13),
            _record("d", 10, None),
        ]
    )
    assert (family.rows, family.predicted, family.worst_id) == (4, 3, "c")
    assert family.mean_abs_error == pytest.approx(0.2)
    assert family.median_abs_error == pytest.approx(0.2)
    assert family.p90_abs_error == pytest.approx(0.3)
    assert family.bias == pytest.approx(0.2 / 3)
    assert family.worst == pytest.approx(0.3)


def test_a_family_without_predictions_has_no_figures() -> None:
    """Nothing is scored, nothing is invented."""
    family = summarise([_record("a", 10, None), _record("b", None, 5)])
    assert (family.rows, family.predicted) == (2, 1)
    assert family.mean_abs_error is family.bias is family.worst is None


def test_records_and_families_have_exactly_the_keys_of_the_contract() -> None:
    """Programs depend on the keys and their order."""
    data = Validation((_record("a", 10, 11),)).to_json()
    assert list(data) == ["families", "rows", "decisions", "decisions_by_kind", "interrupted"]
    assert list(data["families"][0]) == (
        "family kind rows predicted mean_abs_error median_abs_error p90_abs_error bias worst".split()
    )
    assert list(data["rows"][0]) == (
        "id family kind unit measured predicted error interval mismatched skipped_because assumed ran_out setting".split()
    )


def test_no_kind_of_file_can_be_taken_for_another(tmp_path) -> None:
    """The columns of each kind are recognised as that kind alone."""
    for kind in KINDS:
        others = [one for one in KINDS if one.columns <= kind.columns | set(kind.measured)]
        assert others == [kind]
        assert recognise(tmp_path, kind.columns | {"notes"}) is kind


def test_a_file_of_no_kind_says_what_it_needs(tmp_path) -> None:
    """The message lists the columns of every kind."""
    with pytest.raises(CalibrationError, match="collectives: bytes, collective"):
        recognise(tmp_path / "x.csv", {"a", "b"})


@pytest.mark.parametrize("content", [b"", b"a,b\n", b"\xff\xfe\x00"])
def test_a_file_without_rows_or_text_is_refused(tmp_path, content: bytes) -> None:
    """It ends as an error with the file's name, not as an empty report."""
    file = tmp_path / "x.csv"
    file.write_bytes(content)
    with pytest.raises(CalibrationError, match=r"x\.csv"):
        read_rows(file)
