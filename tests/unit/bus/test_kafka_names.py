"""Where a DGD's records go on Kafka, and the one number that names a place there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.bus.kafka.names import Names, offset_after, partition_of, position_of
from headrace.connectors.bus.kafka.topics import limits_of
from headrace.schemas.errors import BusError, ConfigError
from headrace.schemas.streams import DECISIONS, FPM, STATE, STREAMS, MiB

# Computed with kafka-clients 4.4.0: BuiltInPartitioner.partitionForKey(key.getBytes(UTF_8), 12).
JAVA = {
    "ml/llama": 3,
    "ml/qwen": 7,
    "ml/llama-3.1": 5,
    "a/b": 6,
    "team-a/mixtral-8x22b": 3,
    "a/ü-日本": 7,
    "prod/deepseek-r1": 2,
    "x/yz": 3,
}


@pytest.mark.parametrize(("key", "partition"), JAVA.items())
def test_the_partition_is_that_of_the_java_client(key: str, partition: int) -> None:
    assert partition_of(key, 12) == partition


@given(st.integers(1, 1000), st.data())
def test_positions_of_a_partition_rise_and_lead_back_to_their_offset(partitions: int, data: st.DataObject) -> None:
    partition = data.draw(st.integers(0, partitions - 1))
    offset = data.draw(st.integers(0, 2**40))
    position = position_of(partition, offset, partitions)
    assert 0 < position < position_of(partition, offset + 1, partitions)
    assert offset_after(position, partition, partitions) == offset + 1
    assert offset_after(position - 1, partition, partitions) == offset


@given(st.integers(1, 12), st.integers(0, 10_000), st.integers(0, 11))
def test_a_reader_after_a_position_gets_exactly_the_positions_above_it(partitions: int, after: int, n: int) -> None:
    partition = n % partitions
    start = offset_after(after, partition, partitions)
    assert position_of(partition, start, partitions) > after
    assert start == 0 or position_of(partition, start - 1, partitions) <= after


def test_no_two_places_share_a_position() -> None:
    positions = {position_of(p, offset, 5) for p in range(5) for offset in range(100)}
    assert positions == set(range(1, 501))


def test_a_key_that_is_no_dgd_has_no_partition() -> None:
    with pytest.raises(BusError, match="namespace/name"):
        partition_of("llama", 3)
    with pytest.raises(BusError, match="no valid Unicode"):
        partition_of("ml/\ud800", 3)


@pytest.mark.parametrize("prefix", ["", "a b", "a/b", ".a", "a..b", "a" * 240])
def test_a_prefix_that_is_no_topic_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="bus prefix"):
        Names(prefix)


def test_limits_are_those_of_the_table_shared_out_among_the_partitions() -> None:
    decisions, fpm, state = (limits_of(stream, 12) for stream in (DECISIONS, FPM, STATE))
    assert (decisions["cleanup.policy"], decisions["retention.ms"]) == ("delete", "-1")
    assert decisions["retention.bytes"] == str(256 * MiB // 12)
    assert fpm["retention.ms"] == "600000"
    assert (state["cleanup.policy"], state["retention.ms"], state["retention.bytes"]) == ("compact", "-1", "-1")
    for stream in STREAMS.values():
        assert limits_of(stream, 12)["message.timestamp.type"] == "LogAppendTime"
        assert int(limits_of(stream, 10_000)["segment.bytes"]) >= MiB
