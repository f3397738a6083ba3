"""How to reach a Kafka cluster and who we are there."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.connectors.bus.security import check_identity, check_patience, tls_context, without_secrets
from headrace.schemas.errors import ConfigError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DEFAULT_PARTITIONS = 12

_FILES = {"ca": "ca", "cert": "cert", "key": "cert_key"}
_NUMBERS = {"patience_s": float, "partitions": int, "replicas": int}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """Brokers, identity and patience.

    `patience_s`: how long a publish or a request is tried again, across restarts, before it raises BusError.
    `partitions`: of every topic that is created; None is 12. Topics that exist keep theirs, but where it is given they
    must have that many.
    `replicas`: copies of a topic that is created; None is what the cluster says (`default.replication.factor`).
    """

    servers: tuple[str, ...] = ("127.0.0.1:9092",)
    name: str = "headrace"  # the client id, which the brokers' logs, quotas and metrics show
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    sasl: str | None = None  # PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; with a user and without it: SCRAM-SHA-512
    tls: bool = False  # implied by the files below
    ca: Path | None = None  # whom to trust; the system's authorities where it is not given
    cert: Path | None = None  # our certificate, for brokers that verify clients
    cert_key: Path | None = None
    patience_s: float = 30.0
    partitions: int | None = None
    replicas: int | None = None

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("Kafka: no broker given: kafka://HOST:PORT")
        check_patience("Kafka", self.patience_s)
        for what, number in (("partitions", self.partitions), ("replicas", self.replicas)):
            if number is not None and number < 1:
                raise ConfigError(f"Kafka: {what} ({number}) must be at least 1")
        if self.sasl is not None and self.sasl not in MECHANISMS:
            raise ConfigError(f"Kafka: SASL mechanism {self.sasl!r}; known are {', '.join(MECHANISMS)}")
        if self.sasl is not None and self.user is None:
            raise ConfigError(f"Kafka: SASL {self.sasl} needs user and password")
        files = {"CA": self.ca, "certificate": self.cert, "private key": self.cert_key}
        check_identity("Kafka", self.user, self.password, files)

    @classmethod
    def from_url(cls, url: str, **over: Any) -> "KafkaOptions":
        """Options from ``kafka://[user:password@]host:port[,host:port][?sasl=SCRAM-SHA-512&tls=true&ca=FILE...]``.

        Query: sasl, tls (true or false), ca, cert, key (files), name, partitions, replicas, patience_s. `over` are
        options that win over the URL. Raises ConfigError on anything else.
        """
        parts = urlsplit(url)
        if parts.scheme != "kafka" or parts.path.strip("/") or not parts.netloc:
            raise ConfigError(f"Kafka URL {without_secrets(url)!r}: kafka://HOST:PORT[,HOST:PORT] is needed")
        who, at, hosts = parts.netloc.rpartition("@")
        given: dict[str, Any] = {"servers": tuple(_server(host) for host in hosts.split(","))}
        if at:
            user, colon, password = who.partition(":")
            given |= {"user": unquote(user), "password": unquote(password) if colon else None}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            given |= _option(name, value)
        return cls(**{**given, **over})

    @property
    def address(self) -> str:
        """For messages: no secrets."""
        return "kafka://" + ",".join(self.servers)

    @property
    def encrypted(self) -> bool:
        return self.tls or self.ca is not None or self.cert is not None

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context, or None without TLS. Raises ConfigError for a bad file."""
        if not self.encrypted:
            return None
        return tls_context("Kafka", self.ca, self.cert, self.cert_key)

    def security(self) -> dict[str, Any]:
        """What every aiokafka client must be given to be let in."""
        kinds = {(False, False): "PLAINTEXT", (True, False): "SSL",
                 (False, True): "SASL_PLAINTEXT", (True, True): "SASL_SSL"}  # fmt: skip
        given: dict[str, Any] = {"security_protocol": kinds[self.encrypted, self.user is not None]}
        if self.encrypted:
            given["ssl_context"] = self.ssl_context()
        if self.user is not None:
            given |= {
                "sasl_mechanism": self.sasl or "SCRAM-SHA-512",
                "sasl_plain_username": self.user,
                "sasl_plain_password": self.password,
            }
        return given


def _server(host: str) -> str:
    try:
        parts = urlsplit(f"kafka://{host}")
        port = parts.port
    except ValueError as e:
        raise ConfigError(f"Kafka broker {host!r}: {e}") from e
    if not parts.hostname:
        raise ConfigError(f"Kafka broker {host!r}: a host is needed, host:port")
    return host if port is not None else f"{host}:9092"


def _option(name: str, value: str) -> dict[str, Any]:
    if name in _FILES:
        return {_FILES[name]: Path(value)}
    if name == "name":
        return {name: value}
    if name == "sasl":
        return {name: value.upper()}
    if name == "tls":
        if value not in _BOOLEANS:
            raise ConfigError(f"Kafka URL: tls={value!r}; true or false is needed")
        return {name: _BOOLEANS[value]}
    if name in _NUMBERS:
        try:
            return {name: _NUMBERS[name](value)}
        except ValueError as e:
            raise ConfigError(f"Kafka URL: {name}={value!r} is no number") from e
    known = ", ".join((*_FILES, "name", "sasl", "tls", *_NUMBERS))
    raise ConfigError(f"Kafka URL: unknown option {name!r}; known are {known}")
