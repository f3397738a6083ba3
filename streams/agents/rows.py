"""Iterations waiting to be learned from: all of them while there are few, a fixed share of a flood."""

from collections.abc import Sequence

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.rows import MOST
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

    def begin_tick(self) -> None:
        self.room = ALL_OF

    def add(self, fpms: list[Fpm], model: EngineModel) -> None:
        """Keep these iterations, or a part of them; the model is taught as soon as there are many."""
        if len(fpms) > self.room:
            few, many = fpms[: self.room], fpms[self.room :]
            fpms = few + [fpm for fpm in many if not fpm.counter_id * SPREAD >> SHIFT & MASK]
            self.room = 0
        else:
            self.room -= len(fpms)
        self.pending += fpms
        if len(self.pending) >= FLUSH_ROWS:
            self.teach(model)

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
        self.most_kv_tokens = max([self.most_kv_tokens, *(kv for kv in kv_tokens if kv <= MOST)])
        self.pending.clear()

    def to_state(self) -> Sequence[int]:
        """JSON-able; teach first."""
        return [self.room, self.most_kv_tokens]

    def load_state(self, state: Sequence[int]) -> None:
        self.room, self.most_kv_tokens = state
