"""How long an engine iteration takes: a linear model of prompt tokens, decoding requests and their KV tokens.

Seconds and tokens throughout. `docs/simulator.md` derives the presets.
"""

import msgspec

from headrace.schemas.errors import ConfigError


class PrefillTiming(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Iteration seconds = base + per_token * (prompt tokens computed) + per_kv_token * (earlier KV tokens read)."""

    base_s: float
    per_token_s: float
    per_kv_token_s: float = 0.0

    def seconds(self, tokens: int, kv_tokens: int = 0) -> float:
        return self.base_s + self.per_token_s * tokens + self.per_kv_token_s * kv_tokens


class DecodeTiming(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Iteration seconds = base + per_request * requests + per_kv_token * (sum of their context lengths)."""

    base_s: float
    per_request_s: float = 0.0
    per_kv_token_s: float = 0.0

    def seconds(self, requests: int, kv_tokens: float) -> float:
        return self.base_s + self.per_request_s * requests + self.per_kv_token_s * kv_tokens


class Timing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both halves of an engine. In a mixed iteration the weights are read once: only the larger base counts."""

    prefill: PrefillTiming
    decode: DecodeTiming

    def seconds(self, prefill_tokens: float, prefill_kv_tokens: float, requests: int, kv_tokens: float) -> float:
        """One aggregated iteration: `prefill_tokens` computed beside `requests` decoding over `kv_tokens`."""
        p, d = self.prefill, self.decode
        base = max(p.base_s if prefill_tokens else 0.0, d.base_s if requests else 0.0)
        return (
            base
            + p.per_token_s * prefill_tokens
            + p.per_kv_token_s * prefill_kv_tokens
            + d.per_request_s * requests
            + d.per_kv_token_s * kv_tokens
        )


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one replica can hold and do in one iteration."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_kv_tokens: int = 524_288


class Transfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """KV transfer from a prefill to a decode worker: latency + tokens / bandwidth. Null bandwidth = no such term."""

    latency_s: float = 0.0
    tokens_per_s: float | None = None

    def seconds(self, tokens: int) -> float:
        return self.latency_s + (tokens / self.tokens_per_s if self.tokens_per_s else 0.0)


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A named engine: its timing, its limits, its KV transfer, its price in GPUs."""

    what: str
    timing: Timing
    limits: Limits
    transfer: Transfer
    gpus_per_replica: int


PRESETS: dict[str, Preset] = {
    "mocker": Preset(
        what="Dynamo's mocker with 8192 blocks of 64 tokens: its polynomials, made linear",
        timing=Timing(
            prefill=PrefillTiming(base_s=0.0118, per_token_s=18.6e-6),
            decode=DecodeTiming(base_s=0.00591, per_kv_token_s=93.2e-9),
        ),
        limits=Limits(),
        transfer=Transfer(),
        gpus_per_replica=1,
    ),
    "8b": Preset(
        what="roofline of an 8B model on one 80 GB GPU",
        timing=Timing(
            prefill=PrefillTiming(base_s=0.006, per_token_s=32e-6, per_kv_token_s=0.1e-6),
            decode=DecodeTiming(base_s=0.0065, per_request_s=10e-6, per_kv_token_s=56e-9),
        ),
        limits=Limits(max_kv_tokens=390_000),
        transfer=Transfer(latency_s=0.002, tokens_per_s=190_000.0),
        gpus_per_replica=1,
    ),
    "70b": Preset(
        what="roofline of a 70B model on four 80 GB GPUs",
        timing=Timing(
            prefill=PrefillTiming(base_s=0.015, per_token_s=70e-6, per_kv_token_s=0.2e-6),
            decode=DecodeTiming(base_s=0.015, per_request_s=20e-6, per_kv_token_s=35e-9),
        ),
        limits=Limits(max_kv_tokens=390_000),
        transfer=Transfer(latency_s=0.004, tokens_per_s=300_000.0),
        gpus_per_replica=4,
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name. Raises ConfigError naming those that exist."""
    if name not in PRESETS:
        raise ConfigError(f"engine preset {name!r} does not exist: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
