"""The items of a batch: those that hold an FPM, and a dead letter for each of the others."""

import msgspec

from headrace.schemas.deadletter import DeadLetter, cut
from headrace.schemas.errors import RecordError
from headrace.schemas.fpm import VERSION, Fpm, decode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem

MAX_LETTERS = 64  # per batch

Usable = tuple[list[FpmItem], list[Fpm]]  # of equal length
Refused = list[tuple[FpmItem, RecordError]]

_decode = msgspec.msgpack.Decoder(Fpm).decode


def decode_all(items: list[FpmItem]) -> tuple[Usable, Refused]:
    """The items that can be used with their FPMs, and the rest with what is wrong: all at once, else one by one."""
    try:
        fpms = [_decode(item.payload) for item in items]
    except (msgspec.DecodeError, RecursionError):
        fpms = []
    if fpms and not [fpm for fpm in fpms if fpm.version != VERSION or not fpm.worker_id]:
        return (items, fpms), []
    used, fpms, refused = list[FpmItem](), list[Fpm](), Refused()
    for item in items:
        try:
            fpms.append(decode_fpm(item.payload))
            used.append(item)
        except RecordError as e:
            refused.append((item, e))
    return (used, fpms), refused


def dead_letters(batch: FpmBatch, refused: Refused, now: float) -> list[DeadLetter]:
    """A letter for each, up to `MAX_LETTERS`; the last one says how many more there are."""
    letters, place, more = list[DeadLetter](), -1, len(refused) - MAX_LETTERS
    for item, error in refused[:MAX_LETTERS]:
        after = (*range(place + 1, len(batch.items)), *range(place + 1))
        place = next(i for i in after if batch.items[i] is item)
        last = len(letters) == MAX_LETTERS - 1
        letters.append(
            DeadLetter(
                dgd=batch.dgd,
                reason=error.reason,
                message=f"{error}; {more} more of this batch are not kept" if last and more > 0 else str(error),
                reader="headrace.planner",
                stream="fpm",
                position=None,
                at=now,
                data=cut(item.payload),
                size=len(item.payload),
                headers={"source": batch.source, "publisher": str(item.publisher_id), "sequence": str(item.sequence)},
                item=place,
            )
        )
    return letters
