"""Requests that aiokafka does not have: changing single settings of a topic, and the size of its log."""

from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Int64, Schema, String

TOPIC = 2  # resource type
_SET = 0
_TEXT = String("utf-8")


class _AlterResponse(Response):
    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "responses",
            Array(("error_code", Int16), ("error_message", _TEXT), ("resource_type", Int8), ("resource_name", _TEXT)),
        ),
    )


class _AlterStruct(RequestStruct):
    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = _AlterResponse
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", _TEXT),
                ("configs", Array(("name", _TEXT), ("operation", Int8), ("value", _TEXT))),
            ),
        ),
        ("validate_only", Boolean),
    )


class AlterTopics(Request[_AlterStruct]):
    """IncrementalAlterConfigs: sets settings of topics and leaves the others alone."""

    API_KEY = 44

    def __init__(self, changes: dict[str, dict[str, str]]) -> None:
        self._changes = changes

    def build(self, request_struct_class: type[_AlterStruct]) -> Any:
        resources = [
            (TOPIC, topic, [(name, _SET, value) for name, value in settings.items()])
            for topic, settings in self._changes.items()
        ]
        return request_struct_class(resources, False)


class _LogDirsResponse(Response):
    API_KEY = 35
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            Array(
                ("error_code", Int16),
                ("log_dir", _TEXT),
                (
                    "topics",
                    Array(
                        ("name", _TEXT),
                        (
                            "partitions",
                            Array(("partition", Int32), ("size", Int64), ("offset_lag", Int64), ("is_future", Boolean)),
                        ),
                    ),
                ),
            ),
        ),
    )


class _LogDirsStruct(RequestStruct):
    API_KEY = 35
    API_VERSION = 1
    RESPONSE_TYPE = _LogDirsResponse
    SCHEMA = Schema(("topics", Array(("topic", _TEXT), ("partitions", Array(Int32)))))


class LogSizes(Request[_LogDirsStruct]):
    """DescribeLogDirs: how many bytes each partition takes on the broker that is asked."""

    API_KEY = 35

    def __init__(self, topic: str, partitions: list[int]) -> None:
        self._topics = [(topic, partitions)]

    def build(self, request_struct_class: type[_LogDirsStruct]) -> Any:
        return request_struct_class(self._topics)


def size_in(response: Any, partition: int) -> int:
    """Bytes of a partition in an answer to LogSizes."""
    return sum(
        size
        for _, _, topics in response.results
        for _, found in topics
        for number, size, _, is_future in found
        if number == partition and not is_future
    )
