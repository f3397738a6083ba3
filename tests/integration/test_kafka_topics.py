"""The topics as a Kafka operator sees them, and what happens when others have been there."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from kafka_support import KafkaCluster, fresh_prefix

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.kafka import KafkaBus
from headrace.connectors.bus.kafka.topics import limits_of
from headrace.schemas.errors import BusError
from headrace.schemas.streams import ACKS, DECISIONS, INVENTORY, STREAMS, TRAFFIC

A = "ml/llama"


@pytest.fixture
def prefix() -> str:
    return fresh_prefix()


@pytest.fixture
async def bus(kafka: KafkaCluster, prefix: str) -> AsyncIterator[KafkaBus]:
    opened = KafkaBus(kafka.url + "?partitions=3", prefix)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def admin(kafka: KafkaCluster) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=kafka.brokers[0].address)
    await client.start()
    yield client
    await client.close()


async def settings_of(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    [answer] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    [(_, _, _, _, entries)] = answer.resources
    return {entry[0]: entry[1] for entry in entries}


async def test_the_settings_on_the_broker_are_those_of_the_table(
    bus: KafkaBus, admin: AIOKafkaAdminClient, prefix: str
) -> None:
    await bus.ensure(STREAMS.values())
    described = {t["topic"]: t for t in await admin.describe_topics([f"{prefix}.{name}" for name in STREAMS])}
    for stream in STREAMS.values():
        topic = f"{prefix}.{stream.name}"
        assert len(described[topic]["partitions"]) == 3
        found = await settings_of(admin, topic)
        limits = limits_of(stream, 3)
        assert {name: found[name] for name in limits} == limits


async def test_what_the_table_does_not_decide_is_left_alone(
    bus: KafkaBus, admin: AIOKafkaAdminClient, prefix: str
) -> None:
    topic = f"{prefix}.decisions"
    await admin.create_topics([NewTopic(topic, 3, 1, topic_configs={"flush.messages": "7", "retention.ms": "1000"})])
    await bus.ensure([DECISIONS])
    found = await settings_of(admin, topic)
    assert (found["flush.messages"], found["retention.ms"]) == ("7", "-1")


async def test_topics_whose_partitions_differ_are_refused_by_name(
    bus: KafkaBus, admin: AIOKafkaAdminClient, prefix: str
) -> None:
    await admin.create_topics([NewTopic(f"{prefix}.decisions", 3, 1), NewTopic(f"{prefix}.acks", 4, 1)])
    with pytest.raises(BusError, match=rf"different numbers .*{prefix}.acks 4, {prefix}.decisions 3.*re-create those"):
        await bus.ensure([DECISIONS])  # the other topic is of the table, too


async def test_another_number_of_partitions_than_the_configured_one_is_refused(
    bus: KafkaBus, kafka: KafkaCluster, prefix: str
) -> None:
    await bus.ensure([DECISIONS])
    other = KafkaBus(kafka.url + "?partitions=5", prefix)
    await other.open()
    with pytest.raises(BusError, match=r"have 3 partitions and 5 are configured.*Configure 3"):
        await other.ensure([ACKS])
    await other.close()


async def test_a_new_topic_gets_the_partitions_of_those_that_are_there(
    bus: KafkaBus, kafka: KafkaCluster, prefix: str
) -> None:
    await bus.ensure([DECISIONS])
    other = KafkaBus(kafka.url, prefix)
    await other.open()
    await other.ensure([DECISIONS, TRAFFIC])
    info = await asyncio.gather(*(other._topics.partitions(s.name) for s in (DECISIONS, TRAFFIC)))
    await other.close()
    assert info == [3, 3]


async def test_more_copies_than_brokers_are_refused_with_the_remedy(kafka: KafkaCluster, prefix: str) -> None:
    bus = KafkaBus(kafka.url + "?replicas=3", prefix)
    await bus.open()
    with pytest.raises(BusError, match=r"InvalidReplicationFactor.*no more replicas than there are brokers"):
        await bus.ensure([DECISIONS])
    await bus.close()


async def test_looking_for_a_topic_creates_none(bus: KafkaBus, admin: AIOKafkaAdminClient, prefix: str) -> None:
    with pytest.raises(BusError, match="does not exist"):
        await bus.publish(Outgoing("decisions", A, b"1"))
    assert [topic for topic in await admin.list_topics() if topic.startswith(prefix + ".")] == []


async def test_a_topic_that_was_deleted_is_made_again_by_who_ensured_it(
    bus: KafkaBus, admin: AIOKafkaAdminClient, prefix: str
) -> None:
    await bus.ensure([INVENTORY])
    await bus.publish(Outgoing("inventory", A, b"1"))
    await admin.delete_topics([f"{prefix}.inventory"])
    bus._topics.forget("inventory")
    async with asyncio.timeout(20):
        while True:
            try:
                await bus.publish(Outgoing("inventory", A, b"2"))
                break
            except BusError:
                await asyncio.sleep(0.1)
    reader = await bus.read(INVENTORY, after=0)
    assert [message.data for message in await reader.next(timeout=10)] == [b"2"]


async def test_a_plain_client_reads_a_decision_with_key_and_headers(
    bus: KafkaBus, kafka: KafkaCluster, prefix: str
) -> None:
    await bus.ensure([DECISIONS])
    headers = {"ce-id": "x", "ce-source": "/headrace/a%20b", "content-type": "application/json"}
    await bus.publish(Outgoing("decisions", A, b"{}", headers, "x"), expect_last=0)
    await bus.publish(Outgoing("decisions", A, b"[]", headers, "other"), expect_last=(await last(bus)))
    consumer: Any = AIOKafkaConsumer(
        f"{prefix}.decisions", bootstrap_servers=kafka.brokers[0].address, auto_offset_reset="earliest"
    )
    await consumer.start()
    first, second = [await consumer.getone() for _ in range(2)]  # and no marks of the fence between
    await consumer.stop()
    assert (first.key, first.value) == (A.encode(), b"{}")
    assert dict(first.headers) == {"ce_id": b"x", "ce_source": b"/headrace/a b", "content-type": b"application/json"}
    assert dict(second.headers)["headrace-message-id"] == b"other"


async def last(bus: KafkaBus) -> int:
    message = await bus.last(DECISIONS, A)
    assert message is not None
    return message.position


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_what_a_plain_client_writes_is_read_however_it_was_compressed(
    bus: KafkaBus, kafka: KafkaCluster, prefix: str, compression: str
) -> None:
    await bus.ensure([ACKS])
    reader = await bus.read(ACKS, key=A, after=0)
    producer: Any = AIOKafkaProducer(bootstrap_servers=kafka.brokers[0].address, compression_type=compression)
    await producer.start()
    await producer.send_and_wait(f"{prefix}.acks", b"ack" * 100, key=A.encode())  # its partitioner is ours
    await producer.stop()
    [message] = await reader.next(timeout=10)
    assert message.data == b"ack" * 100
    assert (await bus.last(ACKS, A)) == message


async def test_a_record_without_key_or_value_disturbs_nobody(bus: KafkaBus, kafka: KafkaCluster, prefix: str) -> None:
    await bus.ensure([ACKS])
    producer: Any = AIOKafkaProducer(bootstrap_servers=kafka.brokers[0].address)
    await producer.start()
    await producer.send_and_wait(f"{prefix}.acks", b"no key")
    await producer.send_and_wait(f"{prefix}.acks", None, key=A.encode())
    await producer.stop()
    reader = await bus.read(ACKS, after=0)
    found = []
    while len(found) < 2:
        found += await reader.next(timeout=10)
    assert sorted((message.key, message.data) for message in found) == [("", b"no key"), (A, b"")]
    position = await bus.publish(Outgoing("acks", A, b"1"), expect_last=max(m.position for m in found if m.key == A))
    assert position > 0


async def test_a_changed_table_is_migrated(bus: KafkaBus, admin: AIOKafkaAdminClient, prefix: str) -> None:
    await bus.ensure([TRAFFIC])
    await bus.ensure([replace(TRAFFIC, keep_s=60.0)])
    assert (await settings_of(admin, f"{prefix}.traffic"))["retention.ms"] == "60000"
