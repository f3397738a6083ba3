"""What must hold for the decisions of a DGD, whatever died in between."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from sys import intern

from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.decision import Decision
from headrace.schemas.fpm import decode_fpm
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.tick_report import TickReport

Iteration = tuple[str, str, int, int]  # role, worker, rank, counter


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts to print; everything but the first three must be zero."""

    decisions: int
    epochs: int
    applied: int
    gaps: int  # ids that do not follow on the one before
    repeats: int  # an id twice
    epochs_back: int  # an epoch below one before
    applied_twice: int
    stale: int  # scaled by a decision older than one scaled by before
    ticks_repeated: int  # a tick of one DGD reported twice

    @property
    def clean(self) -> bool:
        bad = (self.gaps, self.repeats, self.epochs_back, self.applied_twice, self.stale, self.ticks_repeated)
        return not any(bad)


def audit(
    decisions: Sequence[Decision],
    acks: Iterable[DecisionAck],
    calls: Sequence[tuple[int, int]],
    ticks: Iterable[TickReport],
) -> Audit:
    """`calls` are the (epoch, id) of each call to scale, in order."""
    ids = [d.decision_id for d in decisions]
    epochs = [d.epoch for d in decisions]
    applied = [(a.epoch, a.decision_id) for a in acks if a.status is AckStatus.APPLIED]
    slots = [t.tick for t in ticks]
    return Audit(
        decisions=len(ids),
        epochs=len(set(epochs)),
        applied=len(applied),
        gaps=sum(b > a + 1 for a, b in pairwise(ids)) + (bool(ids) and ids[0] != 0),
        repeats=len(ids) - len(set(ids)),
        epochs_back=sum(b < a for a, b in pairwise(epochs)),
        applied_twice=len(applied) - len(set(applied)),
        stale=sum(b <= a for a, b in pairwise(calls)),
        ticks_repeated=len(slots) - len(set(slots)),
    )


def distinct_fpms(batches: Iterable[FpmBatch]) -> int:
    """How many different iterations the batches hold, whatever is in them twice."""
    return len({iteration for batch in batches for iteration in iterations(batch)})


def iterations(batch: FpmBatch) -> Iterator[Iteration]:
    """What tells an iteration from every other one of its DGD."""
    for item in batch.items:
        fpm = decode_fpm(item.payload)
        yield batch.role, intern(fpm.worker_id), fpm.dp_rank, fpm.counter_id
