"""A bus from a URL."""

import pytest

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.factory import open_bus
from headrace.schemas.errors import BusError, ConfigError
from headrace.schemas.streams import DECISIONS


async def test_who_names_the_same_memory_shares_it() -> None:
    async with open_bus("memory://plant") as one, open_bus("memory://plant") as two, open_bus("memory://") as other:
        await one.ensure([DECISIONS])
        await one.publish(Outgoing("decisions", "ml/llama", b"1"))
        assert (await two.info(DECISIONS)).messages == 1
        with pytest.raises(BusError, match="does not exist"):
            await other.info(DECISIONS)


async def test_memory_is_forgotten_when_nobody_has_it_open() -> None:
    for _ in range(2):
        async with open_bus("memory://forgotten") as bus:
            await bus.ensure([DECISIONS])
            assert await bus.publish(Outgoing("decisions", "ml/llama", b"1")) == 1


async def test_the_bus_is_closed_with_the_block() -> None:
    async with open_bus("memory://") as bus:
        assert bus.connected
    assert not bus.connected


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://broker?x=1", "unknown option 'x'"),
        ("kafka://", "kafka://HOST:PORT"),
        ("redis://broker", "scheme 'redis': memory://"),
        ("memory:", "scheme 'memory': memory://"),
        ("broker:4222", "scheme 'broker': memory://"),
        ("", "memory://"),
        ("embedded:", "embedded:DIRECTORY"),
        ("embedded:data?port=x", r"embedded:DIRECTORY\?port=N"),
        ("embedded:data?sync=no", r"embedded:DIRECTORY\?port=N"),
        ("nats://broker?x=1", "unknown option 'x'"),
    ],
)
async def test_a_url_that_cannot_be_right_is_refused_with_the_known_ones(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        async with open_bus(url):
            pass


async def test_a_bad_prefix_is_refused() -> None:
    with pytest.raises(ConfigError, match="bus prefix"):
        async with open_bus("nats://broker", prefix="a b"):
            pass


async def test_kafka_without_its_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.bus.factory.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[kafka\]'"):
        async with open_bus("kafka://broker"):
            pass


async def test_a_kafka_that_is_not_there_is_an_error_after_the_patience() -> None:
    with pytest.raises(BusError, match=r"kafka://127.0.0.1:9 could not be reached within 0.3 s"):
        async with open_bus("kafka://127.0.0.1:9?patience_s=0.3"):
            pass
