"""Engines whose speed is known, and what they are asked for, in tests of staffing."""

from headrace.models.perf.latency import EngineLimits
from headrace.models.perf.line import Line
from headrace.models.scaling.queueing import AggLines, Targets

PREFILL = Line(intercept_s=0.010, per_prefill_token_s=20e-6)
DECODE = Line(intercept_s=0.005, per_decode_request_s=50e-6, per_kv_token_s=0.1e-6)
MIXED = Line(intercept_s=0.005, per_prefill_token_s=20e-6, per_decode_request_s=50e-6, per_kv_token_s=0.1e-6)
LINES = AggLines(DECODE, MIXED)
LIMITS = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=400_000)
TARGETS = Targets(ttft_s=0.3, itl_s=0.020, late_share=0.03)
