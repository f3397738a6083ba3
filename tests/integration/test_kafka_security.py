"""Every way to say who we are to Kafka, and what happens when it does not believe us."""

from collections.abc import Iterator

import pytest
from kafka_support import Broker, fresh_prefix, kafka_cluster
from nats_identities import Certificates, certificates

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.kafka import KafkaBus
from headrace.schemas.errors import BusError
from headrace.schemas.streams import DECISIONS

A = "ml/llama"
LISTENERS = {"SASL": "SASL_PLAINTEXT", "SASLTLS": "SASL_SSL", "TLS": "SSL", "MUTUAL": "SSL"}


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, identities: Certificates) -> Iterator[Broker]:
    """One broker with a listener for each way in."""
    store = tmp_path_factory.mktemp("kafka")
    chain = store / "server.pem"
    chain.write_text(identities.server_key.read_text() + identities.server_cert.read_text())
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_planner="p@ss/word?";'
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": chain,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": identities.ca,
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    }
    for listener in ("sasl", "sasltls"):
        settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
        for bits in ("256", "512"):
            settings[f"listener.name.{listener}.scram-sha-{bits}.sasl.jaas.config"] = scram
    users = [f"SCRAM-SHA-{bits}=[name=planner,password=secret]" for bits in ("256", "512")]
    options = tuple(word for user in users for word in ("--add-scram", user))
    with kafka_cluster(store, 1, listeners=LISTENERS, settings=settings, format_options=options) as cluster:
        yield cluster.brokers[0]


async def works(url: str) -> None:
    """A full round: connect, create, publish with and without the fence, read."""
    bus = KafkaBus(url, fresh_prefix())
    await bus.open()
    try:
        await bus.ensure([DECISIONS])
        reader = await bus.read(DECISIONS, key=A)
        first = await bus.publish(Outgoing("decisions", A, b"1"), expect_last=0)
        await bus.publish(Outgoing("decisions", A, b"2"))
        found = await reader.next(timeout=10)
        found += [] if len(found) == 2 else await reader.next(timeout=10)
        assert (found[0].data, found[0].position) == (b"1", first)
        assert [message.data for message in found] == [b"1", b"2"]
    finally:
        await bus.close()


async def is_refused(url: str, says: str) -> None:
    bus = KafkaBus(url)
    with pytest.raises(BusError, match=says) as caught:
        await bus.open()
    await bus.close()
    assert "wrong" not in f"{caught.value}"


def at(broker: Broker, listener: str, who: str = "", query: str = "") -> str:
    return f"kafka://{who}127.0.0.1:{broker.ports[listener]}?partitions=2{query}"


async def test_user_and_password_in_plain(broker: Broker) -> None:
    await works(at(broker, "SASL", "planner:p%40ss%2Fword%3F@", "&sasl=PLAIN"))
    await is_refused(at(broker, "SASL", "planner:wrong@", "&sasl=PLAIN"), "refuses us.*Check user, password")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_user_and_password_by_scram(broker: Broker, mechanism: str) -> None:
    await works(at(broker, "SASL", "planner:secret@", f"&sasl={mechanism}"))
    await is_refused(at(broker, "SASL", "planner:wrong@", f"&sasl={mechanism}"), "refuses us.*Check user, password")


async def test_scram_over_tls(broker: Broker, identities: Certificates) -> None:
    await works(at(broker, "SASLTLS", "planner:secret@", f"&ca={identities.ca}"))


async def test_tls_with_an_authority_of_ones_own(broker: Broker, identities: Certificates) -> None:
    await works(at(broker, "TLS", query=f"&ca={identities.ca}"))
    await is_refused(at(broker, "TLS", query="&tls=true&patience_s=1"), "could not be reached.*CERTIFICATE_VERIFY")


async def test_a_client_certificate(broker: Broker, identities: Certificates) -> None:
    ours = f"&ca={identities.ca}&cert={identities.client_cert}&key={identities.client_key}"
    await works(at(broker, "MUTUAL", query=ours))
    await is_refused(at(broker, "MUTUAL", query=f"&ca={identities.ca}&patience_s=1"), "could not be reached")


async def test_who_speaks_plainly_to_a_listener_with_tls_is_told_to_use_it(broker: Broker) -> None:
    await is_refused(at(broker, "TLS", query="&patience_s=1"), r"ask for TLS \(\?tls=true\)")
