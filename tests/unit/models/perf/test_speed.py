"""Which kind of iteration may answer for an aggregated engine."""

import pytest

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits, EngineLoad, itl_s, ttft_s
from headrace.models.perf.line import Line
from headrace.models.perf.speed import line_for
from headrace.schemas.base import AGG, DECODE, PREFILL


def engine(*, prefills: bool = False, decodes: bool = False) -> EngineModel:
    """10 ms + 0.02 ms a token when it prefills alone; 5 ms + 0.05 ms a request when it decodes alone."""
    model = EngineModel()
    if prefills:
        tokens = [100, 500, 1000, 1500, 2000]
        model.learn([1] * 5, tokens, [0] * 5, [0] * 5, [0.010 + 2e-5 * t for t in tokens])
    if decodes:
        requests = [1, 4, 8, 16, 32]
        model.learn([0] * 5, [0] * 5, requests, [0] * 5, [0.005 + 5e-5 * n for n in requests])
    return model


def approx(line: Line) -> object:
    return pytest.approx(
        (line.intercept_s, line.per_prefill_token_s, line.per_decode_request_s, line.per_kv_token_s),
        rel=1e-8,
        abs=1e-15,
    )


def prices(line: Line | None) -> tuple[float, float, float, float] | None:
    if line is None:
        return None
    return line.intercept_s, line.per_prefill_token_s, line.per_decode_request_s, line.per_kv_token_s


def test_prefill_and_decode_seen_alone_tell_what_both_together_cost():  # reference weak spot 2: never starts there
    line = line_for(engine(prefills=True, decodes=True), AGG, prefill=True, decode=True)
    assert prices(line) == approx(Line(0.005, 2e-5, 5e-5, 0.0))


@pytest.mark.parametrize("seen", [{"prefills": True}, {"decodes": True}])
def test_one_of_the_two_alone_does_not(seen):
    assert line_for(engine(**seen), AGG, prefill=True, decode=True) is None


def test_mixed_iterations_answer_where_an_aggregated_engine_never_did_one_thing_alone(agg_model):
    mixed = Line(0.005, 2e-5, 0.0, 1e-7)
    assert prices(line_for(agg_model, AGG, prefill=True, decode=False)) == approx(mixed)
    assert prices(line_for(agg_model, AGG, prefill=False, decode=True)) == approx(mixed)


def test_what_was_seen_alone_is_preferred(agg_model):
    tokens = [100, 500, 1000, 1500, 2000]
    agg_model.learn([1] * 5, tokens, [0] * 5, [0] * 5, [0.010 + 2e-5 * t for t in tokens])
    assert prices(line_for(agg_model, AGG, prefill=True, decode=False)) == approx(Line(0.010, 2e-5))


@pytest.mark.parametrize("role", [PREFILL, DECODE])
def test_other_roles_are_asked_about_their_own_kind_alone(agg_model, role):
    assert line_for(agg_model, role, prefill=role == PREFILL, decode=role == DECODE) is None


def test_an_aggregated_engine_that_only_decoded_so_far_has_an_itl_but_no_ttft():
    model = engine(decodes=True)
    assert itl_s(model, AGG, EngineLoad(scheduled_decode_requests=9)) == pytest.approx(0.0055)
    assert ttft_s(model, AGG, EngineLoad(queued_prefill_tokens=500), EngineLimits()) is None
