"""FpmBatch: some tens of milliseconds of FPMs of one DGD and role, each in the very bytes its engine published."""

import msgspec

from headrace.schemas.base import Name, Record, Role, Seconds, Serial


class FpmItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One FPM as it came. The payload stays encoded: the log keeps Dynamo's bytes, and one bad FPM spoils no batch."""

    published_at: Seconds  # envelope time, seconds since the epoch
    publisher_id: Serial
    sequence: Serial
    payload: bytes


class FpmBatch(Record, frozen=True, kw_only=True, tag="headrace.fpm_batch.v1"):
    role: Role
    source: Name
    received_at: Seconds  # the source's clock when the last item came in
    items: list[FpmItem]
