"""The real AI Configurator against numbers that it is known to give.

    pip install headrace[aic] && pytest tests/aic/check_known_numbers.py

Not part of `make test`: the package brings 400 MB of tables and libraries. Its numbers were seen with 0.12.0.
"""

import pytest

from headrace.connectors.profiles.aic import AicEstimator, Pick, aic_profile, aic_spec
from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.latency import EngineLimits
from headrace.models.profile.rows import iterations

pytest.importorskip("aiconfigurator_core")

SPEC = aic_spec({"hf_id": "Qwen/Qwen3-32B", "system": "h200_sxm", "backend": "vllm"})


def test_a_prompt_of_3000_tokens_takes_275_ms() -> None:
    assert AicEstimator.of(SPEC, Pick()).prefill_s(3000) == pytest.approx(0.275, abs=0.0005)


def test_a_decode_iteration_of_one_request_takes_18_ms() -> None:
    assert AicEstimator.of(SPEC, Pick()).decode_s(1, 3000) == pytest.approx(0.0184, abs=0.00005)


def test_models_that_learned_the_sweep_agree_with_the_tables() -> None:
    prefill, decode = EngineModel(), EngineModel()
    prefill.learn(*iterations(aic_profile(SPEC, "prefill"), "prefill").columns)
    decode.learn(*iterations(aic_profile(SPEC, "decode"), "decode").columns)
    assert prefill.wall_time_s(prefill_tokens=3000) == pytest.approx(0.275, rel=0.02)
    assert decode.wall_time_s(decode_requests=1, decode_kv_tokens=3000) == pytest.approx(0.0184, rel=0.02)


def test_an_aggregated_engine_is_known_from_the_sweep_alone() -> None:
    model = EngineModel()
    model.learn(*iterations(aic_profile(SPEC, "agg"), "agg").columns)
    assert model.ready(Kind.MIXED)
    limits = EngineLimits(8192, 256, 249_864)
    found = capacity(model, "agg", limits, RequestShape(3000, 150), LatencyTargets(1.0, 0.1))
    assert found is not None
    assert found.meets_sla
    assert found.requests_per_s == pytest.approx(2.8, rel=0.1)
