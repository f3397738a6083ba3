"""One request on its way through the cluster."""

from typing import Protocol


class KvHolder(Protocol):
    """Whoever keeps a request's KV until somebody else has it."""

    def release(self, request: "Request", now: float) -> None: ...


class Request:
    """Mutable on purpose: there are a hundred thousand of them, and each is touched a handful of times.

    Times are simulated seconds; -1 means not yet. `computed` counts prompt tokens that a prefill has done.
    """

    __slots__ = ("arrived_at", "computed", "finished_at", "first_token_at", "index", "isl", "kv_at", "osl", "rejected")

    def __init__(self, index: int, arrived_at: float, isl: int, osl: int) -> None:
        self.index = index
        self.arrived_at = arrived_at
        self.isl = isl
        self.osl = osl
        self.computed = 0
        self.first_token_at = -1.0
        self.finished_at = -1.0
        self.rejected = False
        self.kv_at: KvHolder | None = None

    @property
    def done(self) -> bool:
        return self.finished_at >= 0.0

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token; None = there was none."""
        return self.first_token_at - self.arrived_at if self.first_token_at >= 0.0 else None

    @property
    def itl_s(self) -> float | None:
        """Mean over the tokens after the first; None = unfinished, or a single token has no interval."""
        if self.finished_at < 0.0 or self.osl < 2:
            return None
        return (self.finished_at - self.first_token_at) / (self.osl - 1)

    def meets(self, ttft_s: float, itl_s: float) -> bool:
        """Finished, with TTFT and mean ITL within the targets. A single token has no ITL to miss."""
        if self.finished_at < 0.0 or self.first_token_at - self.arrived_at > ttft_s:
            return False
        return self.osl < 2 or self.finished_at - self.first_token_at <= itl_s * (self.osl - 1)
