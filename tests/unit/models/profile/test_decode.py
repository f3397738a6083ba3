"""ITL and throughput between measured decode loads."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.models.profile.decode import Grid, decode_table
from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import DecodeProfile

MAX_KV = 100_000.0


def profile(points: list[tuple[float, float, float, float]], max_kv_tokens: float = MAX_KV) -> DecodeProfile:
    """From (KV usage, context length, ITL in seconds, tokens/s/GPU)."""
    usage, context, itl, throughput = zip(*points, strict=True)
    return DecodeProfile(
        kv_usage=usage,
        context_length=context,
        itl_s=itl,
        throughput_per_gpu=throughput,
        max_kv_tokens=max_kv_tokens,
    )


def golden() -> DecodeProfile:
    """Reference-semantics 11.4."""
    points = []
    for usage, context in product((0.05, 0.2, 0.4, 0.6, 0.8, 0.95), (500.0, 1000.0, 2000.0, 4000.0)):
        batch = max(1.0, usage * MAX_KV / context)
        itl_ms = 5 + 0.05 * batch + 20 * usage
        points.append((usage, context, itl_ms / 1000, 1000 * batch / itl_ms))
    return profile(points)


GOLDEN = golden()
SURFACE = decode_table(GOLDEN)


@pytest.fixture(scope="module")
def grid() -> Grid:
    table = decode_table(GOLDEN, "reference")
    assert isinstance(table, Grid)
    return table


@pytest.mark.parametrize(
    ("concurrency", "context", "cell", "itl_s"),
    [
        (10, 1000, (10, 25), 0.007518789077),
        (50, 1000, (49, 25), 0.017336826676),
        (1000, 1000, (99, 25), 0.02875),
        (10, 3000, (30, 74), 0.011649942106),
    ],
)
def test_the_reference_scheme_looks_up_the_references_cells(
    grid: Grid, concurrency: float, context: float, cell: tuple[int, int], itl_s: float
) -> None:
    assert grid.cell(concurrency, context) == cell
    assert grid.itl_s(concurrency, context) == pytest.approx(itl_s, rel=1e-3)


def test_a_context_longer_than_the_longest_is_the_last_row(grid: Grid) -> None:
    assert grid.cell(10, 9000) == (89, 99)


@pytest.mark.parametrize(
    ("itl_s", "throughput", "found_itl_s", "usage", "meets"),
    [
        (0.02, 2961.296451, 0.019854533, 0.595960, True),
        (0.012, 2321.149450, 0.011797840, 0.272727, True),
        (0.004, 800.0, 0.00625, 0.0, False),
    ],
)
def test_the_reference_scheme_finds_the_references_best(
    grid: Grid, itl_s: float, throughput: float, found_itl_s: float, usage: float, meets: bool
) -> None:
    """Its third answer misses the target, which only `meets_sla` tells."""
    best = grid.find_best_throughput_per_gpu(itl_s, 1000)
    assert best.throughput_per_gpu == pytest.approx(throughput, rel=1e-3)
    assert best.itl_s == pytest.approx(found_itl_s, rel=1e-3)
    assert best.kv_usage == pytest.approx(usage, abs=1e-6)
    assert best.meets_sla is meets


def test_measured_loads_give_what_was_measured() -> None:
    for usage, context, itl, throughput in zip(
        GOLDEN.kv_usage, GOLDEN.context_length, GOLDEN.itl_s, GOLDEN.throughput_per_gpu, strict=True
    ):
        concurrency = usage * MAX_KV / context
        assert SURFACE.itl_s(concurrency, context) == pytest.approx(itl, rel=1e-9)
        assert SURFACE.throughput_per_gpu(concurrency, context) == pytest.approx(throughput, rel=1e-9)


@given(concurrency=st.floats(0, 1e6), context=st.floats(0, 1e5))
def test_no_load_is_faster_or_slower_than_every_measured_one(concurrency: float, context: float) -> None:
    assert min(GOLDEN.itl_s) - 1e-12 <= SURFACE.itl_s(concurrency, context) <= max(GOLDEN.itl_s) + 1e-12
    assert SURFACE.throughput_per_gpu(concurrency, context) > 0


def test_a_cubic_surface_promises_negative_throughput_where_ours_does_not() -> None:
    """A fold in the data, such as an engine's change of its batching: the reference's surface swings below zero."""
    points = [
        (u, c, 0.005 + 0.02 * u, t) for u, t in ((0.0, 10.0), (0.1, 4000.0), (1.0, 4100.0)) for c in (1000.0, 9000.0)
    ]
    points += [(0.02, 5000.0, 0.005, 5.0)]
    reference, ours = decode_table(profile(points), "reference"), decode_table(profile(points))
    assert isinstance(reference, Grid)
    assert reference.throughput.min() < 0
    assert min(ours.throughput_per_gpu(c, 5000.0) for c in range(20)) >= 5.0


def test_the_best_load_is_the_one_of_highest_throughput_within_the_itl() -> None:
    """Past a peak more load gives less: the reference would take the fullest cell."""
    points = [
        (u, c, 0.01 + 0.01 * u, t) for u, t in ((0.0, 100.0), (0.5, 2000.0), (1.0, 1500.0)) for c in (500.0, 4000.0)
    ]
    best = decode_table(profile(points)).find_best_throughput_per_gpu(0.05, 1000)
    assert best.kv_usage == pytest.approx(0.5, abs=0.01)
    assert best.throughput_per_gpu == pytest.approx(2000, rel=0.02)
    assert best.meets_sla
    fullest = decode_table(profile(points), "reference").find_best_throughput_per_gpu(0.05, 1000)
    assert fullest.kv_usage == 1.0
    assert fullest.throughput_per_gpu < 1600


def test_where_no_load_meets_the_itl_the_fastest_one_is_named_and_marked() -> None:
    best = SURFACE.find_best_throughput_per_gpu(0.001, 1000)
    assert best.kv_usage == pytest.approx(0.05)
    assert best.itl_s == pytest.approx(SURFACE.itl_s(0, 1000))
    assert not best.meets_sla


def test_beyond_the_measured_loads_the_nearest_one_answers() -> None:
    assert SURFACE.itl_s(1e6, 1000) == pytest.approx(SURFACE.itl_s(95, 1000))
    assert SURFACE.itl_s(0, 1000) == pytest.approx(SURFACE.itl_s(5, 1000))
    assert SURFACE.itl_s(0.2 * MAX_KV / 9000, 9000) == pytest.approx(SURFACE.itl_s(0.2 * MAX_KV / 4000, 4000))


@pytest.mark.parametrize("scheme", ["measured", "reference"])
@pytest.mark.parametrize(
    "points",
    [
        [(0.1, 500.0), (0.2, 500.0), (0.3, 500.0)],
        [(0.1, 500.0), (0.1, 600.0), (0.1, 700.0)],
        [(0.1, 500.0), (0.2, 1000.0), (0.3, 1500.0)],
        [(0.1, 500.0), (0.2, 1000.0)],
    ],
)
def test_points_on_one_line_are_refused_with_the_remedy(points: list[tuple[float, float]], scheme: str) -> None:
    degenerate = profile([(u, c, 0.01, 100.0) for u, c in points])
    with pytest.raises(ConfigError, match="measure at least two context lengths with two KV usages each"):
        decode_table(degenerate, scheme)


def test_points_nearly_on_one_line_are_refused_too() -> None:
    nearly = profile([(0.0, 100.0, 0.01, 1.0), (0.0, 500.0, 0.01, 1.0), (1e-300, 1e5, 0.01, 1.0)])
    with pytest.raises(ConfigError, match="they lie on one line"):
        decode_table(nearly, "reference")


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(1, 1e5), st.floats(0.001, 1), st.floats(0, 1e5)), min_size=3, max_size=9
    ),
    st.floats(0, 1e6),
    st.floats(0, 2e5),
)
def test_any_profile_is_refused_or_answers_within_what_was_measured(
    points: list[tuple[float, float, float, float]], concurrency: float, context: float
) -> None:
    measured = profile(points)
    try:
        table = decode_table(measured)
    except ConfigError:
        return
    assert min(measured.itl_s) - 1e-9 <= table.itl_s(concurrency, context) <= max(measured.itl_s) + 1e-9
    best = table.find_best_throughput_per_gpu(0.1, context)
    assert best.meets_sla == (best.itl_s <= 0.1)


def test_throughput_between_contexts_that_lie_far_apart_is_that_of_the_load() -> None:
    """An engine of 10 ms and 10 us a request with a cache of 1e6 tokens, whose longer context was not filled as far."""

    def throughput(usage: float, context: float) -> float:
        requests = usage * 1e6 / context
        return requests / (0.010 + 1e-5 * requests)

    loads = [(0.1, 1000.0), (0.9, 1000.0), (0.1, 4000.0), (0.8, 4000.0), (0.1, 16_000.0), (0.9, 16_000.0)]
    points = [(u, c, 0.010 + 1e-5 * (u * 1e6 / c), throughput(u, c)) for u, c in loads]
    table = decode_table(profile(points, max_kv_tokens=1e6))
    fullest = table.throughput_per_gpu(0.9 * 1e6 / 4000, 4000)
    assert fullest == pytest.approx(throughput(0.9, 4000), rel=0.5)
    straight = throughput(0.9, 1000) + (throughput(0.9, 16_000) - throughput(0.9, 1000)) / 5
    assert straight > 2 * throughput(0.9, 4000)  # what flat triangles of throughput would promise
