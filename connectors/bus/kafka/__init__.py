"""The bus on Apache Kafka."""

from headrace.connectors.bus.kafka.bus import KafkaBus
from headrace.connectors.bus.kafka.options import KafkaOptions

__all__ = ["KafkaBus", "KafkaOptions"]
