"""Which partition a DGD belongs to: the same number in every process and every language, for ever.

    partition = FNV-1a-32(<namespace token><name token>) % partitions

The tokens are those of the DGD's subject on NATS (percent-encoded UTF-8, a dot as %2E), one behind the other without a
separator. It is what `{{partition(N,1,2)}}` of a NATS subject transform over `headrace.<stream>.*.*` computes.
"""

from functools import lru_cache
from urllib.parse import quote

from headrace.connectors.bus.base import split_key
from headrace.schemas.errors import BusError

PARTITIONS = 64

_OFFSET, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def tokens_of(key: str) -> tuple[str, str]:
    """Namespace and name as tokens of a subject. Raises BusError when the key has no two parts, or is no Unicode."""
    try:
        namespace, name = (quote(part, safe="").replace(".", "%2E") for part in split_key(key))
    except UnicodeEncodeError as e:
        raise BusError(f"key {key!r} is no valid Unicode: {e}") from e
    return namespace, name


def fnv1a_32(data: bytes) -> int:
    """The 32-bit FNV-1a hash."""
    found = _OFFSET
    for byte in data:
        found = ((found ^ byte) * _PRIME) & _MASK
    return found


@lru_cache(maxsize=65_536)
def partition_of(key: str, partitions: int = PARTITIONS) -> int:
    """The partition of a DGD, from 0. Raises BusError when the key is no DGD."""
    return fnv1a_32("".join(tokens_of(key)).encode()) % partitions
