"""Iterations waiting to be learned from: all of them while there are few, a fixed share of a flood."""

from collections.abc import Sequence

from headrace.models.perf.engine import EngineModel
from headrace.schemas.fpm import Fpm

ALL_OF = 1024  # iterations per tick and role that are learned from without exception
FLUSH_ROWS = 512

# Beyond them one in eight, spread by a multiplicative hash of the counter (Knuth, TAOCP 6.4): a plain stride would keep
# step with engines that do the same every eighth iteration.
SPREAD, SHIFT, MASK = 0x9E3779B1, 13, 7


class Rows:
    """One role's iterations until they are taught; `room` is how many more of this tick are taken without exception."""

    __slots__ = ("most_kv_tokens", "pending", "room")

    def __init__(self) -> None:
        self.pending: list[Fpm] = []
        self.room = ALL_OF
        self.most_kv_tokens = 0  # that one rank was ever seen to hold

    def teach(self, model: EngineModel) -> None:
        """Give everything that waits to the model."""
        if not self.pending:
            return
        work = [fpm.scheduled_requests for fpm in self.pending]
        kv_tokens = [w.sum_decode_kv_tokens for w in work]
        model.learn(
            [w.num_prefill_requests for w in work],
            [w.sum_prefill_tokens for w in work],
            [w.num_decode_requests for w in work],
            kv_tokens,
            [fpm.wall_time for fpm in self.pending],
        )
        self.most_kv_tokens = max(self.most_kv_tokens, *kv_tokens)
        self.pending.clear()

    def to_state(self) -> Sequence[int]:
        """JSON-able; teach first."""
        return [self.room, self.most_kv_tokens]

    def load_state(self, state: Sequence[int]) -> None:
        self.room, self.most_kv_tokens = state
