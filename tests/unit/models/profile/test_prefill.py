"""TTFT and throughput between measured prompt lengths."""

import builtins
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.models.profile.prefill import prefill_table
from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import PrefillProfile


def profile(isl: list[float], ttft_s: list[float], throughput: list[float] | None = None) -> PrefillProfile:
    given = throughput or [x / t for x, t in zip(isl, ttft_s, strict=True)]
    return PrefillProfile(isl=tuple(isl), ttft_s=tuple(ttft_s), throughput_per_gpu=tuple(given))


# Reference-semantics 11.4: TTFT 20 ms + 0.05 ms per token.
GOLDEN = profile([100.0, 500.0, 1000.0, 2000.0, 4000.0], [0.025, 0.045, 0.07, 0.12, 0.22])


@pytest.mark.parametrize(("isl", "ttft_s"), [(0, 0.025), (750, 0.0575), (1500, 0.095), (9999, 0.22)])
def test_the_reference_scheme_gives_the_references_ttft(isl: float, ttft_s: float) -> None:
    assert prefill_table(GOLDEN, "reference").ttft_s(isl) == pytest.approx(ttft_s, rel=1e-9)


@pytest.mark.parametrize(("isl", "throughput"), [(750, 13165.978986), (3000, 17505.411255)])
def test_the_reference_scheme_gives_the_references_throughput(isl: float, throughput: float) -> None:
    assert prefill_table(GOLDEN, "reference").throughput_per_gpu(isl) == pytest.approx(throughput, rel=1e-9)


@pytest.mark.parametrize("scheme", ["measured", "reference"])
def test_measured_lengths_give_what_was_measured(scheme: Any) -> None:
    table = prefill_table(GOLDEN, scheme)
    for isl, ttft, throughput in zip(GOLDEN.isl, GOLDEN.ttft_s, GOLDEN.throughput_per_gpu, strict=True):
        assert table.ttft_s(isl) == pytest.approx(ttft, rel=1e-12)
        assert table.throughput_per_gpu(isl) == pytest.approx(throughput, rel=1e-12)


def test_a_step_in_the_data_does_not_ring() -> None:
    """Where throughput stops rising, a cubic spline promises a fifth more than was ever measured."""
    steps = profile([100, 1000, 4000, 8000], [0.01, 0.03, 0.11, 0.24], [10_000, 33_000, 36_000, 33_000])
    assert prefill_table(steps, "reference").throughput_per_gpu(2048) > 1.2 * 36_000
    assert prefill_table(steps).throughput_per_gpu(2048) <= 36_000


@given(
    st.lists(
        st.tuples(st.integers(1, 20_000), st.floats(0.001, 10.0)), min_size=2, max_size=12, unique_by=lambda p: p[0]
    ),
    st.floats(-100.0, 30_000.0),
)
def test_a_value_lies_between_those_of_the_neighbouring_lengths(points: list[tuple[int, float]], isl: float) -> None:
    points.sort()
    table = prefill_table(profile([float(x) for x, _ in points], [t for _, t in points]))
    below = [t for x, t in points if x <= isl][-1:] or [points[0][1]]
    above = [t for x, t in points if x >= isl][:1] or [points[-1][1]]
    near = below + above
    assert min(near) * (1 - 1e-9) <= table.ttft_s(isl) <= max(near) * (1 + 1e-9)


def test_the_order_of_the_points_does_not_matter() -> None:
    backwards = profile(list(GOLDEN.isl[::-1]), list(GOLDEN.ttft_s[::-1]))
    assert prefill_table(backwards).ttft_s(1234) == prefill_table(GOLDEN).ttft_s(1234)


def test_a_length_that_was_measured_twice_counts_as_the_mean() -> None:
    table = prefill_table(profile([100, 1000, 1000, 2000], [0.01, 0.02, 0.04, 0.06]))
    assert table.ttft_s(1000) == pytest.approx(0.03)


def test_one_length_answers_for_all() -> None:
    table = prefill_table(profile([1000], [0.05]))
    assert (table.ttft_s(1), table.ttft_s(10_000)) == (0.05, 0.05)


def test_the_reference_scheme_needs_four_lengths() -> None:
    with pytest.raises(ConfigError, match=r"3 prompt lengths are too few .* needs 4: measure more, or use the scheme"):
        prefill_table(profile([100, 1000, 2000], [0.01, 0.02, 0.04]), "reference")


def test_without_scipy_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_scipy(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "scipy":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    with pytest.raises(ConfigError, match=r"pip install headrace\[profile\]"):
        prefill_table(GOLDEN)
