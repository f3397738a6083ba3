"""FpmBatch: some tens of milliseconds of FPMs of one DGD and role, each in the very bytes its engine published."""

import msgspec

from headrace.schemas.base import Name, Record, Role, Seconds, Unsigned


class FpmItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One FPM as it came. The payload stays encoded: the log keeps Dynamo's bytes, and one bad FPM spoils no batch."""

    published_at: Seconds  # envelope time, seconds since 1970, UTC
    publisher_id: Unsigned  # of the envelope; not the worker's id
    sequence: Unsigned  # rises by one per message of a publisher
    payload: bytes  # the msgpack document of one FPM


class FpmBatch(Record, frozen=True, kw_only=True, tag="headrace.fpm_batch.v1"):
    role: Role  # from the subject that the FPMs came on; they do not carry it
    source: Name  # who batched them
    received_at: Seconds  # the source's clock when the last item came in
    items: list[FpmItem]  # in the order of arrival
