"""Line: the time of one iteration as a sum of prices. Every fit, and every combination of fits, is one of these."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

FLOOR_S = 1e-6  # no iteration is faster than a microsecond, whatever a fit says far from its data

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """`intercept_s` + price x load, all in seconds per token or per request; no price is negative.

    Prefill tokens beyond `bend_tokens` cost `per_token_beyond_bend_s` on top: small prompts leave a GPU half idle.
    """

    intercept_s: float = 0.0
    per_prefill_token_s: float = 0.0
    per_decode_request_s: float = 0.0
    per_kv_token_s: float = 0.0
    bend_tokens: float = math.inf
    per_token_beyond_bend_s: float = 0.0

    def at(self, prefill_tokens: float = 0.0, decode_requests: float = 0.0, decode_kv_tokens: float = 0.0) -> float:
        """Seconds of one iteration with this load, at least `FLOOR_S`."""
        time = (
            self.intercept_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_decode_request_s * decode_requests
            + self.per_kv_token_s * decode_kv_tokens
            + self.per_token_beyond_bend_s * max(0.0, prefill_tokens - self.bend_tokens)
        )
        return max(FLOOR_S, time)

    def at_each(self, prefill_tokens: Array, decode_requests: Array, decode_kv_tokens: Array) -> Array:
        """Seconds for each of n loads; all arguments have shape (n,)."""
        time: Array = (
            self.intercept_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_decode_request_s * decode_requests
            + self.per_kv_token_s * decode_kv_tokens
            + self.per_token_beyond_bend_s * np.maximum(0.0, prefill_tokens - self.bend_tokens)
        )
        return np.maximum(FLOOR_S, time)

    def with_prefill_of(self, other: "Line") -> "Line":
        """This line, and for every prefill token the price that `other` has for it."""
        return replace(
            self,
            per_prefill_token_s=other.per_prefill_token_s,
            bend_tokens=other.bend_tokens,
            per_token_beyond_bend_s=other.per_token_beyond_bend_s,
        )
