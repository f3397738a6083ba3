"""What a decoding request holds: KV tokens by request, as engines say, over the last minutes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.models.perf.latency import EngineLoad

MEMORY_S = 120.0  # after which a sight counts 1/e: a batch is a small sample of unequal requests
KNOWN_AT = 30.0  # requests seen, as far as they still count


@dataclass(slots=True)
class Held:
    """A mean over sights of a role's batches, a request in each counting once: long stays are seen more often.

    That is how a batch is made up, whether long prompts have long answers or short ones; lengths by themselves do not
    tell.
    """

    requests: float = 0.0
    tokens: float = 0.0
    at: float = 0.0  # seconds, of the last sight

    def see(self, engines: Iterable[EngineLoad], now: float) -> None:
        """Take in what the engines decode now."""
        loads = list(engines)
        kept = math.exp(-max(0.0, now - self.at) / MEMORY_S)
        self.requests = self.requests * kept + sum(e.scheduled_decode_requests for e in loads)
        self.tokens = self.tokens * kept + sum(e.scheduled_decode_kv_tokens for e in loads)
        self.at = max(self.at, now)

    @property
    def mean(self) -> float | None:
        """Tokens by request; None until enough were seen."""
        return self.tokens / self.requests if self.requests >= KNOWN_AT and self.tokens > 0 else None
