"""Names on NATS: stream HEADRACE_DECISIONS, subject headrace.decisions.<namespace>.<name>."""

import re
from functools import lru_cache
from urllib.parse import unquote

from headrace.connectors.bus.partitions import tokens_of
from headrace.schemas.errors import BusError, ConfigError
from headrace.schemas.streams import Stream

_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LONGEST_SUBJECT = 2048  # a server's control line holds 4096 with the reply subject


class Subjects:
    """Names under a prefix. Tokens are percent-encoded, so that any DGD name becomes one token and comes back."""

    def __init__(self, prefix: str) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError(f"bus prefix {prefix!r}: letters, digits, _ and - in parts separated by dots are allowed")
        self.prefix = prefix

    def stream_name(self, stream: str) -> str:
        """HEADRACE_DECISIONS."""
        return f"{self.prefix}_{stream}".replace(".", "_").upper()

    def all_of(self, stream: str) -> str:
        """The subjects of a stream: headrace.decisions.*.*"""
        return f"{self.prefix}.{stream}.*.*"

    def settings(self, stream: Stream) -> dict[str, object]:
        """What differs, in a stream under these names, from what the stream table says."""
        return {}

    def subject(self, stream: str, key: str) -> str:
        """Where records of a DGD go. Raises BusError when the key has no two parts or is too long."""
        return f"{self.prefix}.{stream}.{_encode(key)}"


@lru_cache(maxsize=4096)
def _encode(key: str) -> str:
    encoded = ".".join(tokens_of(key))
    if len(encoded) > _LONGEST_SUBJECT:
        raise BusError(f"key {key[:40]!r}... takes {len(encoded)} bytes in a NATS subject, above {_LONGEST_SUBJECT}")
    return encoded


@lru_cache(maxsize=4096)
def key_of(subject: str) -> str:
    """The DGD that a subject names."""
    namespace, name = subject.split(".")[-2:]
    return f"{unquote(namespace)}/{unquote(name)}"


class BucketSubjects(Subjects):
    """Names of a key-value bucket: stream KV_headrace_shards, subject $KV.headrace_shards.<part>.<part>.

    What is stored there with a last position per key is what every NATS client knows as a KV bucket.
    """

    def bucket(self, stream: str) -> str:
        """The bucket's name: headrace_shards."""
        return f"{self.prefix}_{stream}".replace(".", "_")

    def stream_name(self, stream: str) -> str:
        return f"KV_{self.bucket(stream)}"

    def all_of(self, stream: str) -> str:
        return f"$KV.{self.bucket(stream)}.>"

    def settings(self, stream: Stream) -> dict[str, object]:
        age = {} if stream.keep_s is None else {"max_age": int(stream.keep_s * 1_000_000_000)}
        return {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "deny_delete": True, **age}

    def subject(self, stream: str, key: str) -> str:
        return f"$KV.{self.bucket(stream)}.{_encode(key)}"
