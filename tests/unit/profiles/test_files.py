"""Directories of profiling results, in the reference's keys."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.connectors.profiles import files
from headrace.connectors.profiles.files import DECODE_FILES, PREFILL_FILES, read_profile
from headrace.schemas.errors import ConfigError

PREFILL: dict[str, Any] = {
    "prefill_isl": [100, 1000],
    "prefill_ttft": [10.0, 30.0],
    "prefill_thpt_per_gpu": [10_000.0, 33_000.0],
}
DECODE: dict[str, Any] = {
    "x_kv_usage": [0.1, 0.5],
    "y_context_length": [500.0, 2000.0],
    "z_itl": [5.0, 8.0],
    "z_thpt_per_gpu": [1000.0, 4000.0],
    "max_kv_tokens": [500_000],
}


@pytest.fixture
def write(tmp_path: Path):
    """Writes a file of the profile, as NPZ or JSON by its name."""

    def run(name: str, content: dict[str, Any] | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif path.suffix == ".npz":
            np.savez(path, **{key: np.array(value) for key, value in content.items()})
        else:
            path.write_text(json.dumps(content))
        return tmp_path

    return run


@pytest.mark.parametrize("kind", [0, 1], ids=["npz", "json"])
def test_both_profiles_are_read_in_seconds(write: Any, kind: int) -> None:
    write(PREFILL_FILES[kind], PREFILL)
    profile = read_profile(write(DECODE_FILES[kind], DECODE))
    assert profile.prefill is not None
    assert profile.prefill.isl == (100.0, 1000.0)
    assert profile.prefill.ttft_s == (0.01, 0.03)
    assert profile.prefill.throughput_per_gpu == (10_000.0, 33_000.0)
    assert profile.decode is not None
    assert profile.decode.kv_usage == (0.1, 0.5)
    assert profile.decode.context_length == (500.0, 2000.0)
    assert profile.decode.itl_s == (0.005, 0.008)
    assert profile.decode.max_kv_tokens == 500_000


def test_the_npz_is_taken_where_there_are_both(write: Any) -> None:
    write(PREFILL_FILES[1], {**PREFILL, "prefill_ttft": [1.0, 2.0]})
    profile = read_profile(write(PREFILL_FILES[0], PREFILL))
    assert profile.prefill is not None
    assert profile.prefill.ttft_s == (0.01, 0.03)
    assert profile.decode is None


def test_max_kv_tokens_may_be_one_number(write: Any) -> None:
    profile = read_profile(write(DECODE_FILES[1], {**DECODE, "max_kv_tokens": 500_000}))
    assert profile.decode is not None
    assert profile.decode.max_kv_tokens == 500_000


def test_keys_of_others_are_ignored(write: Any) -> None:
    assert read_profile(write(PREFILL_FILES[0], {**PREFILL, "note": ["x"]})).prefill is not None


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere' does not exist: write the directory"):
        read_profile(tmp_path / "nowhere")


def test_an_empty_directory_says_what_should_be_in_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read_profile(tmp_path)
    assert all(name in str(raised.value) for name in (*PREFILL_FILES, *DECODE_FILES))


@pytest.mark.parametrize("kind", [0, 1], ids=["npz", "json"])
@pytest.mark.parametrize("key", list(PREFILL))
def test_a_missing_column_is_named(write: Any, kind: int, key: str) -> None:
    root = write(PREFILL_FILES[kind], {k: v for k, v in PREFILL.items() if k != key})
    with pytest.raises(ConfigError, match=rf"{key} missing: a profile needs prefill_isl, prefill_ttft"):
        read_profile(root)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not json", "is no JSON"),
        (b"[1, 2]", "holds a list, and should hold an object"),
        (b"[" * 100_000, "is no JSON"),
        ({**PREFILL, "prefill_ttft": ["slow", "fast"]}, "prefill_ttft is not a list of numbers"),
        ({**PREFILL, "prefill_ttft": [[1, 2], [3]]}, "prefill_ttft is not a list of numbers"),
        ({**PREFILL, "prefill_ttft": [[1, 2], [3, 4]]}, "prefill_ttft has 2 dimensions"),
        ({**PREFILL, "prefill_ttft": [True, False]}, "prefill_ttft is not a list of numbers"),
        ({**PREFILL, "prefill_ttft": [None, 1.0]}, "prefill_ttft is not a list of numbers"),
        ({**PREFILL, "prefill_ttft": [1.0]}, "must be of equal length"),
        ({**PREFILL, "prefill_ttft": [float("nan"), 1.0]}, r"ttft_s\[0\] is nan"),
        ({**PREFILL, "prefill_ttft": []}, "must be of equal length"),
    ],
)
def test_a_bad_json_is_refused_with_its_path_and_what_is_wrong(write: Any, content: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        read_profile(write(PREFILL_FILES[1], content))
    assert PREFILL_FILES[1] in str(raised.value)


@pytest.mark.parametrize("content", [b"not a zip", b"", b"PK\x03\x04 cut off"])
def test_a_bad_npz_is_refused_with_its_path(write: Any, content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"raw_data\.npz: is no NPZ file of plain numbers"):
        read_profile(write(PREFILL_FILES[0], content))


def test_an_npz_of_objects_is_not_unpickled(write: Any) -> None:
    arrays = {**PREFILL, "prefill_ttft": np.array([{}, {}], dtype=object)}
    with pytest.raises(ConfigError, match="is no NPZ file of plain numbers"):
        read_profile(write(PREFILL_FILES[0], arrays))


def test_an_empty_max_kv_tokens_is_refused(write: Any) -> None:
    with pytest.raises(ConfigError, match="max_kv_tokens is empty"):
        read_profile(write(DECODE_FILES[0], {**DECODE, "max_kv_tokens": []}))


def test_a_decode_profile_that_cannot_be_is_refused_with_its_path(write: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"selected_decode_interpolation/raw_data\.npz: decode profile: itl_s\[0\] is 0"
    ):
        read_profile(write(DECODE_FILES[0], {**DECODE, "z_itl": [0.0, 1.0]}))


@pytest.mark.parametrize("name", [PREFILL_FILES[0], PREFILL_FILES[1]])
def test_a_file_too_large_for_a_profile_is_refused(write: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(name, PREFILL)
    monkeypatch.setattr(files, "MOST_BYTES", 50)
    with pytest.raises(ConfigError, match="bytes are no profile"):
        read_profile(root)


def test_an_npz_that_unpacks_to_too_much_is_refused(
    write: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / PREFILL_FILES[0]
    path.parent.mkdir()
    np.savez_compressed(path, **{key: np.zeros(100_000) for key in PREFILL})
    monkeypatch.setattr(files, "MOST_BYTES", 100_000)
    assert path.stat().st_size < 100_000
    with pytest.raises(ConfigError, match="unpacked are no profile"):
        read_profile(tmp_path)
