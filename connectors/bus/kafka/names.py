"""Names and places on Kafka: topic headrace.decisions, partition by the DGD, one number for partition and offset."""

import re
from functools import lru_cache

from aiokafka.partitioner import murmur2

from headrace.connectors.bus.base import split_key
from headrace.schemas.errors import BusError, ConfigError

_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LONGEST_TOPIC = 249


class Names:
    """Names under a prefix."""

    def __init__(self, prefix: str) -> None:
        if not _PREFIX.fullmatch(prefix) or len(prefix) > _LONGEST_TOPIC - 20:
            raise ConfigError(f"bus prefix {prefix!r}: letters, digits, _ and - in parts separated by dots are allowed")
        self.prefix = prefix

    def topic(self, stream: str) -> str:
        """headrace.decisions."""
        return f"{self.prefix}.{stream}"

    def fence(self, stream: str, key: str) -> str:
        """The transactional id whose epochs fence the writers of a DGD on a stream."""
        return f"{self.prefix}.{stream}:{key}"


@lru_cache(maxsize=65536)
def partition_of(key: str, partitions: int) -> int:
    """The partition of a DGD: murmur2 of its UTF-8 bytes, as the Java client and `murmur2_random` of librdkafka do.

    Raises BusError when the key has no two parts or is no Unicode.
    """
    return int((murmur2(key_bytes(key)) & 0x7FFFFFFF) % partitions)


def key_bytes(key: str) -> bytes:
    """A DGD as the key of a Kafka record."""
    split_key(key)
    try:
        return key.encode()
    except UnicodeEncodeError as e:
        raise BusError(f"key {key!r} is no valid Unicode: {e}") from e


def position_of(partition: int, offset: int, partitions: int) -> int:
    """One number for a place in a topic: rises by `partitions` with each offset, and is never 0."""
    return offset * partitions + partition + 1


def offset_after(position: int, partition: int, partitions: int) -> int:
    """The first offset of a partition whose position is above a given one."""
    return max(0, (position - partition - 1) // partitions + 1)
