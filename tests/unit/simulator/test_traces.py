import gzip
import math
from pathlib import Path

import pytest

from headrace.connectors.simulator.traces import between, load_trace, overlay, scale_rate, scale_time, trace_of
from headrace.schemas.errors import ConfigError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_an_azure_trace_begins_at_zero_with_its_first_request(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    trace = load_trace(written(tmp_path / "t.csv", text))
    assert trace.arrivals == (0.0, pytest.approx(4.314579, abs=1e-6))
    assert (trace.isl, trace.osl) == ((374, 396), (44, 109))


def test_an_azure_trace_may_carry_a_time_zone(tmp_path: Path) -> None:
    text = AZURE + "2024-05-10 00:00:00.009930+00:00,1,2\n2024-05-10 00:00:01.009930+00:00,3,4\n"
    assert load_trace(written(tmp_path / "t.csv", text)).arrivals == (0.0, 1.0)


def test_a_mooncake_trace_is_read_compressed_or_not(tmp_path: Path) -> None:
    text = '{"timestamp": 1000, "input_length": 5, "output_length": 7, "hash_ids": [1]}\n' * 2
    plain = load_trace(written(tmp_path / "t.jsonl", text))
    (tmp_path / "t2.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert load_trace(tmp_path / "t2.jsonl.gz").rows().__next__() == next(plain.rows()) == (0.0, 5, 7)


def test_requests_out_of_order_are_sorted(tmp_path: Path) -> None:  # dynamo#12211, T18
    lines = [f'{{"timestamp": {ms}, "input_length": {ms + 1}, "output_length": 1}}\n' for ms in (3000, 1000, 2000)]
    trace = load_trace(written(tmp_path / "t.jsonl", "".join(lines)))
    assert trace.arrivals == (0.0, 1.0, 2.0)
    assert trace.isl == (1001, 2001, 3001)


GOOD = '{"timestamp": 0, "input_length": 5, "output_length": 7}\n'


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('{"timestamp": NaN, "input_length": 5, "output_length": 7}', "malformed"),
        ('{"timestamp": 1e400, "input_length": 5, "output_length": 7}', "out of range"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 7}', "milliseconds from zero"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 7}', "input_length is 0"),
        ('{"timestamp": 1, "input_length": 5, "output_length": -7}', "output_length is -7"),
        ('{"timestamp": 1, "input_length": 5.5, "output_length": 7}', "input_length"),
        ('{"timestamp": "1", "input_length": 5, "output_length": 7}', "timestamp"),
        ('{"timestamp": 1, "input_length": 5}', "output_length"),
        ('{"event": {"schema": "dynamo.request.trace.v1"}}', "mixes formats"),
        ('{"timestamp": 1, "input_length": 5, "outp', "malformed"),
        ("2023-11-16 18:15:46.6805900,374,44", "mixes formats"),
    ],
)
def test_a_bad_mooncake_line_refuses_the_file_and_names_its_line(tmp_path: Path, bad: str, says: str) -> None:
    # dynamo#11842, T18: a partly read trace would look like a lighter load
    path = written(tmp_path / "t.jsonl", GOOD + bad + "\n" + GOOD)
    with pytest.raises(ConfigError, match=says) as error:
        load_trace(path)
    assert f"{path}:2:" in str(error.value)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("2023-11-16 18:15:46,374", "2 fields"),
        ("yesterday,374,44", "not a date"),
        ("2023-11-16 18:15:46+00:00,374,44", "mixed"),
        ("2023-11-16 18:15:46,-374,44", "ContextTokens"),
        ("2023-11-16 18:15:46,374,0", "GeneratedTokens"),
        ("2023-11-16 18:15:46,374,nan", "GeneratedTokens"),
        ("2023-11-16 18:15:46,374,4.5", "GeneratedTokens"),
        ("2023-11-16 18:15:46,99999999999,4", "ContextTokens"),
        ('{"timestamp": 0}', "1 fields"),
    ],
)
def test_a_bad_azure_line_refuses_the_file_and_names_its_line(tmp_path: Path, bad: str, says: str) -> None:
    path = written(tmp_path / "t.csv", AZURE + "2023-11-16 18:15:40,1,1\n" + bad + "\n")
    with pytest.raises(ConfigError, match=says) as error:
        load_trace(path)
    assert f"{path}:3:" in str(error.value)


@pytest.mark.parametrize(("name", "text"), [("t.csv", AZURE), ("t.jsonl", "\n\n"), ("t.csv", ""), ("t.txt", GOOD)])
def test_a_file_without_requests_or_of_unknown_kind_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match="t\\."):
        load_trace(written(tmp_path / name, text))


def test_a_truncated_archive_is_refused_whole(tmp_path: Path) -> None:
    whole = gzip.compress("".join(GOOD for _ in range(5000)).encode())
    (tmp_path / "t.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_trace(tmp_path / "t.jsonl.gz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.csv"):
        load_trace(tmp_path / "nowhere.csv")


TEN = trace_of("ten", [(float(i * 60), 100 + i, 10 + i) for i in range(10)])


def test_an_overlay_multiplies_requests_and_moves_none_of_the_first_copy() -> None:
    six = overlay(TEN, 6)
    assert len(six) == 60
    assert set(TEN.rows()) <= set(six.rows())
    assert sum(six.isl) == 6 * sum(TEN.isl)


def test_an_overlay_moves_each_request_by_at_most_the_jitter() -> None:
    for at, isl, _ in overlay(TEN, 4, jitter_s=15.0).rows():
        assert abs(at - 60.0 * (isl - 100)) <= 15.0
        assert at >= 0.0


def test_an_overlay_depends_on_its_seed_alone() -> None:
    assert overlay(TEN, 3, seed=5) == overlay(TEN, 3, seed=5)
    assert overlay(TEN, 3, seed=5) != overlay(TEN, 3, seed=6)


def test_scaling_time_stretches_arrivals_and_keeps_lengths() -> None:
    slow = scale_time(TEN, 2.5)
    assert slow.duration_s == 2.5 * TEN.duration_s
    assert slow.isl == TEN.isl


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_scaling_the_rate_scales_the_number_of_requests(factor: float) -> None:
    many = trace_of("many", [(float(i), 100, 10) for i in range(4000)])
    assert len(scale_rate(many, factor)) == pytest.approx(factor * 4000, rel=0.05)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_a_senseless_factor_is_refused(factor: float) -> None:
    for scale in (scale_time, scale_rate):
        with pytest.raises(ConfigError, match="factor"):
            scale(TEN, factor)


def test_a_cut_begins_at_zero() -> None:
    assert between(TEN, 60.0, 180.0).arrivals == (0.0, 60.0)


@pytest.mark.shared
def test_the_azure_conversation_overlaid_six_times_has_116196_requests(shared: Path) -> None:
    trace = overlay(load_trace(shared / "data/traces/azure_llm_2023_conv.csv"), 6)
    assert len(trace) == 116_196
    assert sum(trace.isl) / len(trace) == pytest.approx(1154.7, abs=0.1)


@pytest.mark.shared
def test_the_mooncake_conversation_is_read_whole(shared: Path) -> None:
    trace = load_trace(shared / "data/traces/mooncake_conversation.jsonl.gz")
    assert (len(trace), trace.duration_s) == (12_031, 3536.999)
