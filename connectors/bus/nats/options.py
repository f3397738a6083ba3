"""How to reach a NATS server and who we are there."""

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import nkeys

from headrace.connectors.bus.security import check_identity, check_patience, tls_context, without_secrets
from headrace.schemas.errors import ConfigError

_SEED = re.compile(r"^SU[A-Z2-7]+", re.MULTILINE)
_FILES = {"creds": "credentials", "nkey": "nkey_seed", "ca": "ca", "cert": "cert", "key": "cert_key"}
_WORDS = {"name": "name", "inbox_prefix": "inbox_prefix", "tls_hostname": "tls_hostname"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """Servers, identity and patience. At most one of credentials, nkey_seed, user and password, token.

    `patience_s`: how long a publish or a request is tried again, across reconnects, before it raises BusError.
    `replicas`: copies of a stream that is created (1 on a single server, 3 on a cluster); existing ones are left alone.
    """

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    name: str = "headrace"  # what the server's monitoring shows
    credentials: Path | None = None  # a .creds file: JWT and seed
    nkey_seed: Path | None = None  # a file with an SU... seed
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls: bool = False  # TLS even where the server does not ask for it; implied by tls:// and by the files below
    ca: Path | None = None  # whom to trust; the system's authorities where it is not given
    cert: Path | None = None  # our certificate, for servers that verify clients
    cert_key: Path | None = None
    tls_hostname: str | None = None  # the name in the server's certificate, where it is not the host
    inbox_prefix: str = "_INBOX"
    patience_s: float = 30.0
    replicas: int | None = None

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("NATS: no server given: nats://HOST:PORT")
        check_patience("NATS", self.patience_s)
        if self.replicas is not None and self.replicas < 1:
            raise ConfigError(f"NATS: replicas ({self.replicas}) must be at least 1")
        for server in self.servers:
            if urlsplit(server).username or urlsplit(server).password:
                raise ConfigError("NATS: user and password belong into their own options, or use NatsOptions.from_url")
        ways = [self.credentials, self.nkey_seed, self.user, self.token]
        if sum(way is not None for way in ways) > 1:
            raise ConfigError("NATS: give one of credentials, nkey_seed, user and password, token, not several")
        files = {"credentials": self.credentials, "nkey seed": self.nkey_seed}
        files |= {"CA": self.ca, "certificate": self.cert, "private key": self.cert_key}
        check_identity("NATS", self.user, self.password, files)
        for path in (self.credentials, self.nkey_seed):
            if path is not None:
                _seed_in(path)

    @classmethod
    def from_url(cls, url: str) -> "NatsOptions":
        """Options from ``nats://[user:password@|token@]host:port[,host:port][?creds=FILE&nkey=FILE&ca=FILE...]``.

        Query: creds, nkey, ca, cert, key (files), name, inbox_prefix, tls_hostname, patience_s, replicas. The scheme
        tls:// asks for TLS. Raises ConfigError on anything else.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("nats", "tls") or parts.path.strip("/") or not parts.netloc:
            raise ConfigError(f"NATS URL {without_secrets(url)!r}: nats://HOST:PORT or tls://HOST:PORT is needed")
        who, at, hosts = parts.netloc.rpartition("@")
        given: dict[str, object] = {"servers": tuple(_server(parts.scheme, host) for host in hosts.split(","))}
        if at:
            user, colon, password = who.partition(":")
            given |= {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            given |= _option(name, value)
        return cls(**given, tls=parts.scheme == "tls")  # type: ignore[arg-type]  # the names are checked above

    @property
    def address(self) -> str:
        """For messages: no secrets."""
        return ",".join(self.servers)

    def seed(self) -> str | None:
        """The nkey seed, read anew for each connection: nats-py before 2.15 stumbles over a line break in the file."""
        return None if self.nkey_seed is None else _seed_in(self.nkey_seed)

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context, or None where the server decides. Raises ConfigError for a bad file."""
        if not (self.tls or self.ca or self.cert):
            return None
        return tls_context("NATS", self.ca, self.cert, self.cert_key)


def _seed_in(path: Path) -> str:
    """The seed of a file that holds it alone, or of a .creds file with JWT and seed."""
    text = path.read_text(encoding="utf-8", errors="replace")
    seed = _SEED.search(text)
    found = seed.group() if seed else ""
    try:
        nkeys.from_seed(bytearray(found.encode())).wipe()
    except (nkeys.NkeysError, ValueError) as e:
        raise ConfigError(f"NATS: {path} holds no usable user seed (a line that begins with SU): {e!r}") from e
    return found


def _server(scheme: str, host: str) -> str:
    server = f"{scheme}://{host}"
    try:
        parts = urlsplit(server)
        port = parts.port
    except ValueError as e:
        raise ConfigError(f"NATS server {host!r}: {e}") from e
    if not parts.hostname:
        raise ConfigError(f"NATS server {host!r}: a host is needed, host:port")
    return server if port is not None else f"{server}:4222"


def _option(name: str, value: str) -> dict[str, object]:
    if name in _FILES:
        return {_FILES[name]: Path(value)}
    if name in _WORDS:
        return {_WORDS[name]: value}
    try:
        if name == "patience_s":
            return {name: float(value)}
        if name == "replicas":
            return {name: int(value)}
    except ValueError as e:
        raise ConfigError(f"NATS URL: {name}={value!r} is no number") from e
    known = ", ".join((*_FILES, *_WORDS, "patience_s", "replicas"))
    raise ConfigError(f"NATS URL: unknown option {name!r}; known are {known}")
