"""What is known before any iteration came, and how live iterations take over."""

import json

import pytest

from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.latency import EngineLimits, EngineLoad, ttft_s
from headrace.schemas.base import PREFILL

SIZES = (100, 1000, 2000, 4000, 8000)


def prefill_s(tokens: float, slower: float = 1.0) -> float:
    return slower * (0.010 + 0.000_02 * tokens)


def known(slower: float = 1.0, sizes=SIZES) -> EngineModel:
    """A prefill model that has served nothing."""
    model = EngineModel()
    model.know_beforehand(
        [1] * len(sizes), sizes, [0] * len(sizes), [0] * len(sizes), [prefill_s(n, slower) for n in sizes]
    )
    return model


def live(model: EngineModel, sizes, slower: float = 1.0) -> EngineModel:
    model.learn([1] * len(sizes), sizes, [0] * len(sizes), [0] * len(sizes), [prefill_s(n, slower) for n in sizes])
    return model


def test_it_gives_prices_at_once():
    model = known()
    assert model.ready(Kind.PREFILL)
    assert model.wall_time_s(prefill_tokens=3000) == pytest.approx(prefill_s(3000), rel=1e-6)
    found = capacity(model, PREFILL, EngineLimits(), RequestShape(3000, 1), LatencyTargets(0.5))
    assert found.meets_sla


def test_three_points_are_enough():
    assert known(sizes=SIZES[:3]).ready(Kind.PREFILL)
    assert not known(sizes=SIZES[:2]).ready(Kind.PREFILL)


def test_it_tells_nothing_of_the_requests_that_will_come():
    model = known()
    assert (model.mean_isl, model.mean_decode_length, model.mean_prefill_tokens) == (None, None, None)
    assert ttft_s(model, PREFILL, EngineLoad(queued_prefill_tokens=1000), EngineLimits()) is None
    live(model, [500])
    assert model.mean_isl == 500


def test_a_sweep_does_not_count_as_iterations_that_were_seen():
    assert known().samples(Kind.PREFILL) == 0


@pytest.mark.parametrize(("rows", "share"), [(0, 0.0), (16, 0.833), (64, 0.981), (640, 0.999)])
def test_live_rows_take_over_as_they_come(rows, share):
    model = live(known(), [1500] * rows)  # 64 of one load are a full cell
    assert model.live_share == pytest.approx(share, abs=0.001)


def test_where_live_rows_come_they_soon_decide():
    """A sweep that was twice too fast is off by a tenth after 64 iterations at two loads, by 1 % after 640."""
    few, many = (live(known(), [1000, 3000] * n, slower=2.0) for n in (32, 320))
    assert few.wall_time_s(prefill_tokens=2000) == pytest.approx(prefill_s(2000, 2.0), rel=0.1)
    assert many.wall_time_s(prefill_tokens=2000) == pytest.approx(prefill_s(2000, 2.0), rel=0.01)


def test_what_live_rows_never_show_is_still_known():
    """Alone, rows of one size are taken to be proportional to it: they cannot tell the fixed cost."""
    model = live(known(), [1000] * 2000)
    assert model.wall_time_s(prefill_tokens=4000) == pytest.approx(prefill_s(4000), rel=0.02)
    assert live(EngineModel(), [1000] * 2000).wall_time_s(prefill_tokens=4000) == pytest.approx(
        4 * prefill_s(1000), rel=0.01
    )


def test_newer_knowledge_replaces_the_older():
    model = known(slower=3.0)
    before = model.revision
    columns = zip(*((1, n, 0, 0, prefill_s(n)) for n in SIZES), strict=True)
    model.know_beforehand(*(list(c) for c in columns))
    assert model.revision > before
    assert model.wall_time_s(prefill_tokens=3000) == known().wall_time_s(prefill_tokens=3000)


def test_it_can_be_taken_away():
    model = known()
    before = model.revision
    model.know_beforehand([], [], [], [], [])
    assert (model.ready(Kind.PREFILL), model.live_share) == (False, None)
    assert model.revision > before


def test_it_is_in_the_state():
    model = live(known(), [1000] * 20, slower=1.2)
    copy = EngineModel.from_state(json.loads(json.dumps(model.to_state())))
    assert copy.to_state() == model.to_state()
    assert copy.coefficients(Kind.PREFILL) == model.coefficients(Kind.PREFILL)
    assert copy.live_share == model.live_share


def test_a_state_of_before_there_was_any_is_read():
    state = live(EngineModel(), list(SIZES)).to_state()
    del state["beforehand"]
    assert EngineModel.from_state(state).ready(Kind.PREFILL)


def test_live_rows_that_are_far_off_are_not_taken_for_outliers():
    """A sweep that was ten times too fast."""
    model = live(known(), [1000, 2000, 3000] * 64, slower=10.0)
    assert model.wall_time_s(prefill_tokens=2500) == pytest.approx(prefill_s(2500, 10.0), rel=0.1)
