"""The stream table on Kafka: creating topics, migrating their limits, and refusing what would break the order."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka import errors
from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

from headrace.connectors.bus.base import MAX_MESSAGE_BYTES
from headrace.connectors.bus.kafka.cluster import ANSWER_S, Cluster, check
from headrace.connectors.bus.kafka.names import Names
from headrace.connectors.bus.kafka.options import DEFAULT_PARTITIONS
from headrace.connectors.bus.kafka.requests import TOPIC, AlterTopics
from headrace.schemas.errors import BusError
from headrace.schemas.streams import STREAMS, MiB, Stream

_CLUSTERS_DEFAULT = -1  # replicas
_LOOK_S = 0.03
_LEAST_SEGMENT = MiB  # Kafka 4 takes no smaller one
_LARGEST_SEGMENT = 64 * MiB
_OVERHEAD = 64 * 1024  # of a batch around the largest message
_MINUTE_MS = 60_000


def limits_of(stream: Stream, partitions: int) -> dict[str, str]:
    """The settings of a topic that the stream table decides. Bytes are per partition: a topic's are shared out."""
    share = max(_LEAST_SEGMENT, stream.keep_bytes // partitions)
    limits = {
        "message.timestamp.type": "LogAppendTime",  # the log has the clock
        "max.message.bytes": str(MAX_MESSAGE_BYTES + _OVERHEAD),
        "segment.bytes": str(min(_LARGEST_SEGMENT, max(_LEAST_SEGMENT, share // 8))),
    }
    if stream.last_only:
        return limits | {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.1",
            "max.compaction.lag.ms": str(10 * _MINUTE_MS),
            "retention.ms": "-1",
            "retention.bytes": "-1",
        }
    return limits | {
        "cleanup.policy": "delete",
        "retention.ms": "-1" if stream.keep_s is None else str(round(stream.keep_s * 1000)),
        "retention.bytes": str(share),
    }


class Topics:
    """Creates and migrates topics, and remembers them: one that was ensured here and is gone is made again."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self._cluster = cluster
        self._names = names
        self._ensured: dict[str, Stream] = {}
        self._partitions: dict[str, int] = {}

    async def ensure(self, streams: Iterable[Stream]) -> None:
        """Create them, or give them the table's limits. Raises BusError where the partitions do not fit together."""
        wanted = {self._names.topic(stream.name): stream for stream in streams}
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._cluster.options.patience_s
        while True:  # another process may create them between our steps, and leaders take their time
            found = await self._describe({self._names.topic(name) for name in STREAMS} | set(wanted))
            partitions = self._co_partitioned({topic: len(leaders) for topic, leaders in found.items()})
            missing = [topic for topic in wanted if topic not in found]
            if not missing and all(leader >= 0 for topic in wanted for leader in found[topic]):
                break
            if loop.time() > give_up:
                raise BusError(
                    f"topics {', '.join(wanted)} have no leaders yet, or are deleted by others while we create them: "
                    f"see what the brokers say, then try again"
                )
            if missing:
                await self._create({topic: limits_of(wanted[topic], partitions) for topic in missing}, partitions)
            await asyncio.sleep(_LOOK_S)
        await self._migrate({topic: limits_of(stream, partitions) for topic, stream in wanted.items()})
        for stream in wanted.values():
            self._ensured[stream.name] = stream
            self._partitions[stream.name] = partitions

    async def partitions(self, stream: str) -> int:
        """How many partitions a stream has. Raises BusError when it does not exist."""
        known = self._partitions.get(stream)
        if known is not None:
            self._cluster.check_open()
            return known
        topic = self._names.topic(stream)
        found = await self._describe({topic})
        if topic not in found and stream in self._ensured:
            await self.ensure([self._ensured[stream]])
            return self._partitions[stream]
        if topic not in found:
            raise BusError(f"topic {topic} does not exist: call ensure, or check the bus's prefix")
        self._partitions[stream] = len(found[topic])
        return len(found[topic])

    def forget(self, stream: str) -> None:
        """Look for a stream again when it is next used: it may have been deleted."""
        self._partitions.pop(stream, None)

    def last_only(self, stream: Stream) -> bool:
        """Does a stream keep the last per key, as far as we know?"""
        return stream.last_only or self._ensured.get(stream.name, stream).last_only

    async def _describe(self, topics: set[str]) -> dict[str, list[int]]:
        """The leader of each partition, of those topics that exist."""

        async def attempt() -> dict[str, list[int]]:
            answer = await self._cluster.ask_any(MetadataRequest(sorted(topics), False))
            found: dict[str, list[int]] = {}
            for code, topic, _, partitions in answer.topics:
                if errors.for_code(code) in (errors.UnknownTopicOrPartitionError, errors.InvalidTopicError):
                    continue
                if errors.for_code(code) is not errors.LeaderNotAvailableError:
                    check(code, f"topic {topic}")
                found[topic] = [leader for _, _, leader, *_ in sorted(partitions, key=lambda p: int(p[1]))]
            return found

        return await self._cluster.insist("looking for topics", attempt)

    def _co_partitioned(self, counts: Mapping[str, int]) -> int:
        """The number of partitions that all have, or shall have. Raises BusError when they differ."""
        wanted = self._cluster.options.partitions
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
            raise BusError(
                f"topics under the prefix {self._names.prefix} have different numbers of partitions ({said}), so a "
                f"DGD's records would not lie together. Give all the same: delete and re-create those that differ, or "
                f"choose another prefix"
            )
        existing = next(iter(counts.values()), None)
        if existing is not None and wanted is not None and existing != wanted:
            raise BusError(
                f"topics under the prefix {self._names.prefix} have {existing} partitions and {wanted} are configured; "
                f"the number of a topic in use cannot change without moving its DGDs. Configure {existing}, or choose "
                f"another prefix"
            )
        return existing or wanted or DEFAULT_PARTITIONS

    async def _create(self, limits: Mapping[str, Mapping[str, str]], partitions: int) -> None:
        replicas = self._cluster.options.replicas or _CLUSTERS_DEFAULT
        new: list[Any] = [
            (topic, partitions, replicas, [], list(settings.items())) for topic, settings in limits.items()
        ]

        async def attempt() -> list[tuple[str, int, str | None]]:
            answer = await self._cluster.ask_any(CreateTopicsRequest(new, int(ANSWER_S * 1000), False))
            for topic, code, _ in answer.topic_errors:
                if errors.for_code(code) is errors.NotControllerError:
                    check(code, topic)
            return list(answer.topic_errors)

        for topic, code, said in await self._cluster.insist("creating topics", attempt):
            kind = errors.for_code(code)
            if code and kind is not errors.TopicAlreadyExistsError:
                raise BusError(f"topic {topic} cannot be created: {kind.__name__} {said or ''}. {_remedy(kind)}")

    async def _migrate(self, limits: Mapping[str, Mapping[str, str]]) -> None:
        """Set what differs from the table."""
        asked = [(TOPIC, topic, list(settings)) for topic, settings in limits.items()]
        changes: dict[str, dict[str, str]] = {}

        async def look() -> Any:
            answer = await self._cluster.ask_any(DescribeConfigsRequest(asked, False))
            for code, said, _, topic, _ in answer.resources:
                check(code, f"settings of {topic} {said or ''}")
            return answer.resources

        async def change() -> Any:
            answer = await self._cluster.ask_any(AlterTopics(changes))
            for code, said, _, topic in answer.responses:
                check(code, f"settings of {topic} {said or ''}")

        try:
            for _, _, _, topic, entries in await self._cluster.insist("reading the settings of topics", look):
                found = {entry[0]: entry[1] for entry in entries}
                differ = {name: value for name, value in limits[topic].items() if found.get(name) != value}
                if differ:
                    changes[topic] = differ
            if changes:
                await self._cluster.insist("changing the settings of topics", change)
        except errors.KafkaError as e:
            raise BusError(f"topics cannot get the table's limits ({', '.join(sorted(changes or limits))}): {e}") from e


def _remedy(kind: type[Exception]) -> str:
    if kind is errors.InvalidReplicationFactorError:
        return "Ask for no more replicas than there are brokers: ?replicas=N"
    if kind in (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError):
        return "Allow this user to create topics, or create it beforehand"
    return "See the broker's log"
