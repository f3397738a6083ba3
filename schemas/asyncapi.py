"""The AsyncAPI 3 document: every stream as a channel, on NATS and on Kafka, from the stream table and the examples.

Pure: returns the document; `headrace.schemas.generate` writes it.
"""

from typing import Any

import yaml

from headrace.schemas.base import schema_of
from headrace.schemas.cloudevents import CONTENT_TYPES, headers_for
from headrace.schemas.codec import plain
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.streams import KEY, ORDERING, STREAMS, Stream

Json = dict[str, Any]

CONTRACT_VERSION = "1.0.0"  # major: of the records; the rest rises when a field is added

_ABOUT = """\
Headrace plans how many workers an LLM deployment (DGD) should have. What it sees, thinks and decides are records on \
these streams, on NATS JetStream or on Kafka. This document speaks for the planner: it receives what sources, \
executors and operators write, and sends what it thinks. Outside forecasters and proposers write to `predictions` and \
`proposals`; executors read `decisions` and write `acks`.

On NATS a record goes to the subject in the channel's address. On Kafka it goes to the topic in the channel's binding, \
with the DGD as its key. The headers are CloudEvents 1.0 in binary mode: on Kafka `ce_id` in place of `ce-id`, and so \
on, without `ce_datacontenttype`.

Readers ignore fields that they do not know. Within a major version fields are only ever added."""

_FPM_NOTE = """\
Each item carries one ForwardPassMetrics document in the very msgpack bytes that the engine published (schema \
`json/dynamo.fpm.v1.json`). Dynamo itself publishes them one by one, in an envelope \
(`json/dynamo.fpm_envelope.v1.json`), on the core NATS subject \
`namespace.{namespace}.component.{component}.endpoint.{endpoint}.forward-pass-metrics`; the event source takes the \
envelope off and batches what is inside."""

_HEADERS = {
    "ce-specversion": "CloudEvents version.",
    "ce-id": "Identity of the record; a repeated record has the same. Also the `Nats-Msg-Id`.",
    "ce-source": "The process that wrote it, as a URI reference.",
    "ce-type": "Schema name and major version; names the file in json/.",
    "ce-subject": "The DGD.",
    "ce-time": "When what the record says was true; RFC 3339, UTC.",
    "ce-datacontenttype": "Media type of the payload.",
    "content-type": "The same, where HTTP and the Go SDK look.",
}
_OPTIONAL_HEADERS = ("ce-time", "content-type")


def document() -> Json:
    """The whole document, as plain data."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Headrace streams",
            "version": CONTRACT_VERSION,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPES["json"],
        "servers": {
            "nats": {"host": "localhost:4222", "protocol": "nats", "description": "NATS with JetStream."},
            "kafka": {"host": "localhost:9092", "protocol": "kafka", "description": "Kafka."},
        },
        "channels": {stream.name: _channel(stream) for stream in STREAMS.values()},
        "operations": _operations(),
        "components": {
            "messages": {_message_name(stream): _message(stream) for stream in STREAMS.values()},
            "parameters": {
                "namespace": {"description": "First part of the DGD; percent-encoded, dots too."},
                "name": {"description": "Second part of the DGD; percent-encoded, dots too."},
            },
        },
    }


def to_yaml(tree: Json) -> str:
    """Deterministic YAML: insertion order, no anchors, long texts as blocks."""
    head = "# Generated from headrace.schemas by `python -m headrace.schemas.generate`; do not edit.\n"
    return head + yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _message_name(stream: Stream) -> str:
    """`fpm_batch` of `headrace.fpm_batch.v1`."""
    return schema_of(stream.record).split(".")[1]


def _ref(*path: str) -> Json:
    return {"$ref": "#/" + "/".join(path)}


def _channel(stream: Stream) -> Json:
    name = _message_name(stream)
    return {
        "address": f"headrace.{stream.name}.{{namespace}}.{{name}}",
        "title": stream.name,
        "summary": stream.what,
        "description": _paragraph(stream) + (f"\n\n{_FPM_NOTE}" if stream.codec == "msgpack" else ""),
        "messages": {name: _ref("components", "messages", name)},
        "parameters": {part: _ref("components", "parameters", part) for part in ("namespace", "name")},
        "bindings": {"kafka": _kafka_topic(stream)},
        "x-headrace-stream": {
            "key": KEY,
            "written-by": stream.written_by,
            "read-by": stream.read_by,
            "may-write": stream.may_write,
            "kept": stream.kept,
            "in-memory": stream.in_memory,
            "ordering": ORDERING,
            "delivery": stream.delivery,
            "jetstream": f"HEADRACE_{stream.name.upper()}",
        },
    }


def _paragraph(stream: Stream) -> str:
    return (
        f"Written by: {stream.written_by}. Read by: {stream.read_by}. May write: {stream.may_write}. "
        f"Kept: {stream.kept}. Order: {ORDERING}. Delivery: {stream.delivery}."
    )


def _kafka_topic(stream: Stream) -> Json:
    limits: Json = {"cleanup.policy": ["compact"]} if stream.last_only else {"cleanup.policy": ["delete"]}
    if not stream.last_only:
        limits["retention.ms"] = -1 if stream.keep_s is None else round(stream.keep_s * 1000)
    return {"topic": f"headrace.{stream.name}", "topicConfiguration": limits, "bindingVersion": "0.5.0"}


def _operations() -> Json:
    """What the planner does with each stream, by the table's own columns."""
    found: Json = {}
    for stream in STREAMS.values():
        for action, who in (("receive", stream.read_by), ("send", stream.written_by)):
            if "planner" in who or "every reader" in who:
                found[action + stream.name.title()] = {
                    "action": action,
                    "channel": _ref("channels", stream.name),
                    "summary": f"The planner {'reads' if action == 'receive' else 'writes'} {stream.what}.",
                    "messages": [_ref("channels", stream.name, "messages", _message_name(stream))],
                }
    return found


def _message(stream: Stream) -> Json:
    schema = schema_of(stream.record)
    return {
        "name": schema,
        "title": stream.record.__name__,
        "summary": stream.what,
        "contentType": CONTENT_TYPES[stream.codec],
        "headers": _headers(stream),
        "payload": {"$ref": f"./json/{schema}.json"},
        "bindings": {"kafka": {"key": {"type": "string", "description": KEY}, "bindingVersion": "0.5.0"}},
        "examples": [_example(stream)],
    }


def _headers(stream: Stream) -> Json:
    fixed = {
        "ce-specversion": "1.0",
        "ce-type": schema_of(stream.record),
        "ce-datacontenttype": CONTENT_TYPES[stream.codec],
        "content-type": CONTENT_TYPES[stream.codec],
    }
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} | ({"const": fixed[name]} if name in fixed else {})
            for name, text in _HEADERS.items()
        },
        "required": [name for name in _HEADERS if name not in _OPTIONAL_HEADERS],
    }


def _example(stream: Stream) -> Json:
    record = EXAMPLES[stream.name]
    example: Json = {"name": _message_name(stream)}
    if stream.codec == "msgpack":
        example["summary"] = "As JSON would show it: byte strings in base64."
    return example | {"headers": headers_for(record, source=_SOURCES[stream.name]), "payload": plain(record)}


_SOURCES = {
    "fpm": "/headrace/dynamo-events",
    "traffic": "/headrace/frontend-0",
    "inventory": "/headrace/kubernetes",
    "config": "/headrace/operator",
    "profiles": "/headrace/planner",
    "predictions": "/capacity-team/forecaster",
    "fits": "/headrace/planner",
    "proposals": "/events-calendar",
    "decisions": "/headrace/planner",
    "acks": "/headrace/kubernetes-0",
    "ticks": "/headrace/planner",
    "deadletters": "/headrace/planner",
    "state": "/headrace/planner",
}
