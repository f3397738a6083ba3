"""The three models of reference-semantics 3.9: exactly linear engines, whose numbers can be worked out by hand."""

import pytest

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits

PREFILL_TOKENS = (100, 500, 1000, 1500, 2000)
DECODES = ((1, 500), (4, 3000), (8, 9000), (16, 15000), (32, 40000), (64, 60000))
MIXED = (
    (100, 1, 1, 500),
    (500, 1, 4, 3000),
    (1000, 1, 8, 9000),
    (1500, 2, 16, 15000),
    (2000, 2, 32, 40000),
    (300, 1, 64, 60000),
)


@pytest.fixture
def limits() -> EngineLimits:
    return EngineLimits(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=100_000)


@pytest.fixture
def prefill_model() -> EngineModel:
    """A: 10 ms + 0.02 ms a token."""
    model = EngineModel()
    times = [(10 + 0.02 * t) / 1000 for t in PREFILL_TOKENS]
    model.learn([1] * 5, PREFILL_TOKENS, [0] * 5, [0] * 5, times)
    return model


@pytest.fixture
def decode_model() -> EngineModel:
    """B: 5 ms + 0.05 ms a request + 0.0001 ms a token of context."""
    model = EngineModel()
    requests, kv = zip(*DECODES, strict=True)
    model.learn([0] * 6, [0] * 6, requests, kv, [(5 + 0.05 * n + 0.0001 * k) / 1000 for n, k in DECODES])
    return model


@pytest.fixture
def agg_model() -> EngineModel:
    """C: 5 ms + 0.02 ms a prefill token + 0.0001 ms a token of context; only mixed iterations were seen."""
    model = EngineModel()
    tokens, prompts, requests, kv = zip(*MIXED, strict=True)
    model.learn(prompts, tokens, requests, kv, [(5 + 0.02 * p + 0.0001 * k) / 1000 for p, _, _, k in MIXED])
    return model
