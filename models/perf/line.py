"""Line: the time of one iteration as a sum of prices. Every fit, and every combination of fits, is one of these."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

FLOOR_S = 1e-6  # no iteration is faster than a microsecond, whatever a fit says far from its data

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """`intercept_s` + price x load, all in seconds per token or per request; no price is negative."""

    intercept_s: float = 0.0
    per_prefill_token_s: float = 0.0
    per_decode_request_s: float = 0.0
    per_kv_token_s: float = 0.0

    def at(self, prefill_tokens: float = 0.0, decode_requests: float = 0.0, decode_kv_tokens: float = 0.0) -> float:
        """Seconds of one iteration with this load, at least `FLOOR_S`."""
        return max(FLOOR_S, self._sum(prefill_tokens, decode_requests, decode_kv_tokens))

    def at_each(self, prefill_tokens: Array, decode_requests: Array, decode_kv_tokens: Array) -> Array:
        """Seconds for each of n loads; all arguments have shape (n,)."""
        time: Array = (
            self.intercept_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_decode_request_s * decode_requests
            + self.per_kv_token_s * decode_kv_tokens
        )
        return np.maximum(FLOOR_S, time)

    def _sum(self, prefill_tokens: float, decode_requests: float, decode_kv_tokens: float) -> float:
        return (
            self.intercept_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_decode_request_s * decode_requests
            + self.per_kv_token_s * decode_kv_tokens
        )

    def with_prefill_of(self, other: "Line") -> "Line":
        """This line, and for every prefill token the price that `other` has for it."""
        return replace(self, per_prefill_token_s=other.per_prefill_token_s)
