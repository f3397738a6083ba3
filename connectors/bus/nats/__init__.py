"""The bus on NATS JetStream."""

from headrace.connectors.bus.nats.bus import NatsBus
from headrace.connectors.bus.nats.options import NatsOptions

__all__ = ["NatsBus", "NatsOptions"]
