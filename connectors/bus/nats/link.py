"""What publisher and readers share."""

from dataclasses import dataclass, replace

from headrace.connectors.bus.nats.api import JetStreamApi
from headrace.connectors.bus.nats.connection import Connection
from headrace.connectors.bus.nats.options import NatsOptions
from headrace.connectors.bus.nats.streams import Streams
from headrace.connectors.bus.nats.subjects import BucketSubjects, Subjects


@dataclass(frozen=True, slots=True)
class Link:
    """The connection, JetStream behind it, and the names there."""

    connection: Connection
    api: JetStreamApi
    streams: Streams
    subjects: Subjects
    patience_s: float

    def bucket(self) -> "Link":
        """The same connection, where every stream is a key-value bucket."""
        subjects = BucketSubjects(self.subjects.prefix)
        return replace(self, subjects=subjects, streams=Streams(self.api, subjects, self.streams.replicas))


def link(options: NatsOptions, prefix: str) -> Link:
    """A link that is not open yet. Raises ConfigError for a bad prefix or bad TLS files."""
    subjects = Subjects(prefix)
    connection = Connection(options)
    api = JetStreamApi(connection, options.patience_s)
    return Link(connection, api, Streams(api, subjects, options.replicas), subjects, options.patience_s)
