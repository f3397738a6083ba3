"""What is printed is for the one who reads it: a person, or the next program."""

import json

import pytest

from headrace.streams.cli import output
from headrace.streams.cli.output import Column

NAME = Column("name", lambda row: str(row["name"]))
SIZE = Column("size", lambda row: str(row["size"]), right=True, optional=True)
WHY = Column("why", lambda row: str(row["why"]), wrap=True)
ROWS = [{"name": "a", "size": 1, "why": "one\ttwo\x1b[31m"}, {"name": "bb", "size": 22, "why": "three"}]


def test_a_pipe_gets_tab_separated_values_with_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(ROWS, (NAME, SIZE), as_json=False)
    assert capsys.readouterr().out == "name\tsize\na\t1\nbb\t22\n"


def test_a_cell_cannot_break_a_line_or_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(ROWS, (WHY,), as_json=False)
    assert capsys.readouterr().out == "why\none\\x09two\\x1b[31m\nthree\n"


def test_json_holds_the_whole_rows_whatever_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(ROWS, (NAME,), as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_no_rows_are_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    output.show([], (NAME,), as_json=True)
    assert capsys.readouterr().out == "[]\n"


def test_a_terminal_gets_a_table_in_which_brackets_are_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    output.show([{"name": "[red]x[/red]", "size": 1, "why": ""}], (NAME, SIZE), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "size"]
    assert lines[1].split() == ["[red]x[/red]", "1"]


def test_json_cannot_move_the_cursor_and_means_the_same() -> None:
    text = "a\x1bb\x7fc\x9bd"
    shown = output.to_json(text)
    assert all(" " <= c != "\x7f" and not "\x80" <= c <= "\x9f" for c in shown)
    assert json.loads(shown) == text


@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (200, [0, 1, 2]),
        (2 + 4 + 24 + 2 * 2 + 2, [0, 1, 2]),
        (30, [0, 2]),  # the optional column goes
        (1, [0, 2]),  # the others must be there, however narrow
    ],
)
def test_optional_columns_go_where_a_terminal_is_narrow(width: int, kept: list[int]) -> None:
    cells = [["a", "1", "one"], ["bb", "22", "three"]]
    assert output.fitting(cells, (NAME, SIZE, WHY), width) == kept


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(1796086520.9, "2026-12-01T00:55:20Z"), (0.0, "1970-01-01T00:00:00Z"), (None, "-"), (1e12, "1e+12")],
)
def test_a_time_is_shown_in_utc(time_s: float | None, text: str) -> None:
    assert output.when(time_s) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (64 * 1024 * 1024, "64.0 MiB"), (5 * 1024**4, "5120.0 GiB")],
)
def test_bytes_are_shown_in_the_unit_that_fits(n_bytes: int, text: str) -> None:
    assert output.size(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.04, "0.04 s"), (94.5, "94 s"), (750.0, "12.5 min"), (-3.0, "-3.00 s")],
)
def test_a_duration_is_shown_in_the_unit_that_fits(seconds: float | None, text: str) -> None:
    assert output.duration(seconds) == text


def test_a_hexdump_shows_offsets_bytes_and_what_is_printable() -> None:
    assert output.hexdump(b"0123456789abcdef\x00\xff\n~").splitlines() == [
        "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef",
        "00000010  00 ff 0a 7e                                      ...~",
    ]


def test_a_hexdump_of_nothing_is_empty() -> None:
    assert output.hexdump(b"") == ""
