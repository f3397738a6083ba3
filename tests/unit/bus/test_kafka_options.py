"""What a Kafka URL says, and what it must not say."""

from pathlib import Path

import pytest

from headrace.connectors.bus.kafka import KafkaOptions
from headrace.schemas.errors import ConfigError


def test_a_host_alone_gets_the_port_of_kafka() -> None:
    assert KafkaOptions.from_url("kafka://broker").servers == ("broker:9092",)
    assert KafkaOptions.from_url("kafka://[::1]").servers == ("[::1]:9092",)


def test_several_brokers_share_the_rest() -> None:
    options = KafkaOptions.from_url("kafka://u:p@one:1,two:2?name=planner&partitions=6&replicas=3&patience_s=2.5")
    assert options.servers == ("one:1", "two:2")
    assert options.address == "kafka://one:1,two:2"
    assert (options.user, options.password, options.name) == ("u", "p", "planner")
    assert (options.partitions, options.replicas, options.patience_s) == (6, 3, 2.5)


def test_user_and_password_are_decoded() -> None:
    options = KafkaOptions.from_url("kafka://a%40b:p%3Aw%2F@broker")
    assert (options.user, options.password) == ("a@b", "p:w/")


@pytest.mark.parametrize(
    ("url", "protocol", "mechanism"),
    [
        ("kafka://b", "PLAINTEXT", None),
        ("kafka://b?tls=true", "SSL", None),
        ("kafka://u:p@b", "SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ("kafka://u:p@b?sasl=plain", "SASL_PLAINTEXT", "PLAIN"),
        ("kafka://u:p@b?sasl=SCRAM-SHA-256&tls=1", "SASL_SSL", "SCRAM-SHA-256"),
    ],
)
def test_user_and_tls_decide_the_protocol(url: str, protocol: str, mechanism: str | None) -> None:
    security = KafkaOptions.from_url(url).security()
    assert security["security_protocol"] == protocol
    assert security.get("sasl_mechanism") == mechanism
    assert ("ssl_context" in security) == protocol.endswith("SSL")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://broker", "kafka://HOST:PORT"),
        ("kafka://", "kafka://HOST:PORT"),
        ("kafka://broker/path", "kafka://HOST:PORT"),
        ("kafka://broker:port", "broker:port"),
        ("kafka://:9092", "a host is needed"),
        ("kafka://broker?creds=x", "unknown option 'creds'; known are ca, cert, key, name, sasl, tls"),
        ("kafka://broker?partitions=many", "partitions='many' is no number"),
        ("kafka://broker?partitions=0", "partitions"),
        ("kafka://broker?replicas=0", "replicas"),
        ("kafka://broker?ca=/no/such", "CA file /no/such does not exist"),
        ("kafka://broker?cert=/no/such", "cert and key go together"),
        ("kafka://broker?patience_s=100", "patience_s"),
        ("kafka://broker?patience_s=nan", "patience_s"),
        ("kafka://broker?tls=maybe", "true or false"),
        ("kafka://u@broker", "user and password go together"),
        ("kafka://broker?sasl=PLAIN", "needs user and password"),
        ("kafka://u:p@broker?sasl=GSSAPI", "'GSSAPI'; known are PLAIN"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_with_the_rule(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"Kafka.*{says}"):
        KafkaOptions.from_url(url)


def test_secrets_are_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        KafkaOptions.from_url("kafka://u:s3cret@broker/path")
    assert "s3cret" not in f"{caught.value}"
    assert "s3cret" not in repr(KafkaOptions.from_url("kafka://u:s3cret@broker"))


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate")
    with pytest.raises(ConfigError, match="TLS files cannot be used"):
        KafkaOptions.from_url(f"kafka://broker?ca={wrong}").ssl_context()
