"""A bus from a URL."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from headrace.connectors.bus.base import Bus
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.memory import MemoryBroker, MemoryBus
from headrace.connectors.bus.nats import NatsBus, NatsOptions
from headrace.schemas.errors import ConfigError

if TYPE_CHECKING:  # aiokafka is an extra, and takes its time to import
    from headrace.connectors.bus.kafka import KafkaOptions

_brokers: dict[str, tuple[MemoryBroker, int]] = {}  # by name, with how many have it open

_KNOWN = "memory:// or memory://NAME, nats://HOST:PORT, tls://HOST:PORT, kafka://HOST:PORT, or embedded:DIRECTORY"


@asynccontextmanager
async def open_bus(url: str, prefix: str = "headrace") -> AsyncIterator[Bus]:
    """The bus at a URL, open for the length of a block.

    - ``memory://`` or ``memory://NAME``: shared by all that name it in this process, as long as one of them has it open
    - ``nats://HOST:PORT``, ``tls://HOST:PORT``: JetStream; see `NatsOptions.from_url` for users, files and the rest
    - ``kafka://HOST:PORT``: Kafka; see `KafkaOptions.from_url`. Needs the extra `kafka`
    - ``embedded:DIRECTORY`` or ``embedded:DIRECTORY?port=N``: a nats-server of our own on that directory, which stops
      when the block ends

    Raises ConfigError on any other URL, BusError when it cannot be reached.
    """
    async with AsyncExitStack() as stack:
        scheme, _, rest = url.partition(":")
        bus: Bus
        match scheme:
            case "memory" if rest.startswith("//"):
                bus = MemoryBus(stack.enter_context(_shared(rest[2:])))
            case "nats" | "tls":
                bus = NatsBus(NatsOptions.from_url(url), prefix)
            case "embedded" if rest.partition("?")[0]:
                server = await stack.enter_async_context(_embedded(rest))
                bus = NatsBus(server.url, prefix)
            case "kafka":
                bus = kafka_bus(url, prefix)
            case _:
                raise ConfigError(f"bus URL with the scheme {scheme!r}: {_KNOWN} is needed")
        stack.push_async_callback(bus.close)
        await bus.open()
        yield bus


def kafka_bus(where: "str | KafkaOptions", prefix: str) -> Bus:
    """A bus on Kafka that is not open yet. Raises ConfigError where the extra is not installed."""
    need_kafka()
    from headrace.connectors.bus.kafka import KafkaBus

    return KafkaBus(where, prefix)


def need_kafka() -> None:
    """Raises ConfigError where the extra `kafka` is not installed."""
    if find_spec("aiokafka") is None:
        raise ConfigError("a bus on Kafka needs aiokafka: pip install 'headrace[kafka]'")


@contextmanager
def _shared(name: str) -> Iterator[MemoryBroker]:
    """The broker of that name, forgotten when the last one leaves it."""
    broker, users = _brokers.get(name) or (MemoryBroker(), 0)
    _brokers[name] = broker, users + 1
    try:
        yield broker
    finally:
        users = _brokers[name][1] - 1
        if users:
            _brokers[name] = broker, users
        else:
            del _brokers[name]


def _embedded(rest: str) -> EmbeddedNats:
    directory, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    port = options.pop("port", None)
    if options or not (port is None or port.isdecimal()):
        raise ConfigError(f"bus URL embedded:{rest}: embedded:DIRECTORY or embedded:DIRECTORY?port=N is needed")
    return EmbeddedNats(directory, port=None if port is None else int(port))
