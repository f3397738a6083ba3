"""What the options of every broker share: TLS files, a bounded patience, URLs without secrets."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from headrace.connectors.bus.base import DUPLICATE_WINDOW_S
from headrace.schemas.errors import ConfigError

LONGEST_PATIENCE_S = DUPLICATE_WINDOW_S / 2


def check_patience(broker: str, patience_s: float) -> None:
    """Raises ConfigError where a message could be published again when the first one is no longer known."""
    if not 0 < patience_s <= LONGEST_PATIENCE_S:
        raise ConfigError(
            f"{broker}: patience_s ({patience_s:g}) must be above 0 and at most {LONGEST_PATIENCE_S:g}: "
            f"a repeated message is known for {DUPLICATE_WINDOW_S:g} s only"
        )


def check_identity(broker: str, user: str | None, password: str | None, files: Mapping[str, Path | None]) -> None:
    """Raises ConfigError where a half is missing, or a file. `files`: what each is, among them "certificate" and
    "private key"."""
    if (user is None) != (password is None):
        raise ConfigError(f"{broker}: user and password go together")
    if (files["certificate"] is None) != (files["private key"] is None):
        raise ConfigError(f"{broker}: cert and key go together: the client certificate and its private key")
    for what, path in files.items():
        if path is not None and not path.is_file():
            raise ConfigError(f"{broker}: {what} file {path} does not exist")


def tls_context(broker: str, ca: Path | None, cert: Path | None, cert_key: Path | None) -> ssl.SSLContext:
    """Trusts `ca`, or the system's authorities, and shows `cert` if there is one. Raises ConfigError for a bad file."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert and cert_key:
            context.load_cert_chain(cert, cert_key)
    except ssl.SSLError as e:
        raise ConfigError(f"{broker}: TLS files cannot be used (ca {ca}, cert {cert}): {e}") from e
    return context


def without_secrets(url: str) -> str:
    """For messages: a URL without user, password or token."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
