"""Reads a directory of profiling results, in the reference's keys (reference-semantics 3.8, item 3)."""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import DecodeProfile, EngineProfile, PrefillProfile

# What may be in the directory: the NPZ is taken where there are both.
PREFILL_FILES = ("selected_prefill_interpolation/raw_data.npz", "prefill_raw_data.json")
DECODE_FILES = ("selected_decode_interpolation/raw_data.npz", "decode_raw_data.json")
PREFILL_KEYS = ("prefill_isl", "prefill_ttft", "prefill_thpt_per_gpu")
DECODE_KEYS = ("x_kv_usage", "y_context_length", "z_itl", "z_thpt_per_gpu", "max_kv_tokens")

MOST_BYTES = 64 * 2**20  # of one file, unpacked: a sweep has a few hundred points
MS = 1000.0

Columns = Mapping[str, tuple[float, ...]]


def read_profile(directory: str | Path) -> EngineProfile:
    """The profiles of prefill and decode that lie in the directory; one of them may be missing.

    Raises ConfigError: no such directory, neither profile in it, a file that cannot be read, a key that is missing or
    is no column of numbers.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ConfigError(f"profile directory {str(root)!r} does not exist: write the directory of the sweep's results")
    prefill, decode = _first(root, PREFILL_FILES), _first(root, DECODE_FILES)
    if prefill is None and decode is None:
        names = ", ".join((*PREFILL_FILES, *DECODE_FILES))
        raise ConfigError(f"profile directory {str(root)!r} holds no profile: it should hold one or more of {names}")
    return EngineProfile(
        prefill=None if prefill is None else prefill_profile(_columns(prefill, PREFILL_KEYS), str(prefill)),
        decode=None if decode is None else decode_profile(_columns(decode, DECODE_KEYS), str(decode)),
    )


def prefill_profile(columns: Columns, where: str) -> PrefillProfile:
    """A profile from the reference's columns: tokens, ms, tokens/s/GPU. Raises ConfigError naming `where`."""
    try:
        return PrefillProfile(
            isl=columns["prefill_isl"],
            ttft_s=tuple(ms / MS for ms in columns["prefill_ttft"]),
            throughput_per_gpu=columns["prefill_thpt_per_gpu"],
        )
    except ConfigError as e:
        raise ConfigError(f"{where}: {e}") from e


def decode_profile(columns: Columns, where: str) -> DecodeProfile:
    """A profile from the reference's columns: share, tokens, ms, tokens/s/GPU. Raises ConfigError naming `where`."""
    if not columns["max_kv_tokens"]:
        raise ConfigError(f"{where}: max_kv_tokens is empty: it holds the tokens that the KV cache has room for")
    try:
        return DecodeProfile(
            kv_usage=columns["x_kv_usage"],
            context_length=columns["y_context_length"],
            itl_s=tuple(ms / MS for ms in columns["z_itl"]),
            throughput_per_gpu=columns["z_thpt_per_gpu"],
            max_kv_tokens=columns["max_kv_tokens"][0],
        )
    except ConfigError as e:
        raise ConfigError(f"{where}: {e}") from e


def _first(root: Path, names: tuple[str, ...]) -> Path | None:
    return next((root / name for name in names if (root / name).is_file()), None)


def _columns(path: Path, keys: tuple[str, ...]) -> Columns:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(f"{path}: {size} bytes are no profile (at most {MOST_BYTES}): check the path")
        data = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read ({e.strerror or e}): check its permissions") from e
    found = _npz(path, data, keys) if path.suffix == ".npz" else _json(path, data)
    missing = [key for key in keys if key not in found]
    if missing:
        raise ConfigError(f"{path}: {', '.join(missing)} missing: a profile needs {', '.join(keys)}; sweep again")
    return {key: _numbers(path, key, found[key]) for key in keys}


def _npz(path: Path, data: bytes, keys: tuple[str, ...]) -> Mapping[str, Any]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            unpacked = sum(member.file_size for member in packed.infolist())
        if unpacked > MOST_BYTES:
            raise ConfigError(f"{path}: {unpacked} bytes unpacked are no profile (at most {MOST_BYTES})")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {key: arrays[key] for key in keys if key in arrays.files}
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, NotImplementedError) as e:
        raise ConfigError(f"{path}: is no NPZ file of plain numbers ({e}): sweep again") from e


def _json(path: Path, data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: is no JSON ({e}): sweep again") from e
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: holds a {type(found).__name__}, and should hold an object with the columns")
    return found


def _numbers(path: Path, key: str, value: Any) -> tuple[float, ...]:
    """A column, or one number as a column of one."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal length within the list
        array = np.asarray("")
    if array.dtype.kind not in "iuf" and array.size:
        raise ConfigError(f"{path}: {key} is not a list of numbers: sweep again")
    if array.ndim > 1:
        raise ConfigError(f"{path}: {key} has {array.ndim} dimensions, and should be a plain list of numbers")
    return tuple(float(v) for v in array.ravel())
