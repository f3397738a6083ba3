"""Keys, credentials and certificates for tests of NATS security, made anew for each test."""

import base64
import json
import shutil
import subprocess
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import nkeys
import pytest

_UNLIMITED = {
    "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1, "wildcards": True,
    "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
}  # fmt: skip


def key_pair(kind: int) -> tuple[nkeys.KeyPair, str, str]:
    """A new key pair of a kind (nkeys.PREFIX_BYTE_...), its public key, its seed."""
    import nacl.signing

    seed = nkeys.encode_seed(bytes(nacl.signing.SigningKey.generate()), kind)
    pair = nkeys.from_seed(bytearray(seed))
    return pair, pair.public_key.decode(), bytes(seed).decode()


def _jwt(signer: nkeys.KeyPair, issuer: str, subject: str, name: str, claims: dict[str, object]) -> str:
    def part(value: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    body: dict[str, object] = {"iat": 1, "iss": issuer, "name": name, "sub": subject, "nats": {**claims, "version": 2}}
    body["jti"] = sha256(json.dumps(body).encode()).hexdigest()
    signed = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(body)}"
    return f"{signed}.{base64.urlsafe_b64encode(signer.sign(signed.encode())).decode().rstrip('=')}"


def operator_config_and_credentials(folder: Path) -> tuple[str, Path]:
    """A server configuration that trusts one operator, and a .creds file of a user there."""
    operator, operator_id, _ = key_pair(nkeys.PREFIX_BYTE_OPERATOR)
    account, account_id, _ = key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    _, system_id, _ = key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    _, user_id, user_seed = key_pair(nkeys.PREFIX_BYTE_USER)
    operator_claims: dict[str, object] = {"type": "operator", "system_account": system_id}
    account_claims: dict[str, object] = {"type": "account", "limits": _UNLIMITED}
    user_claims: dict[str, object] = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    config = f"""
operator: {_jwt(operator, operator_id, operator_id, "operator", operator_claims)}
resolver: MEMORY
resolver_preload: {{
  {account_id}: {_jwt(operator, operator_id, account_id, "planner", account_claims)}
  {system_id}: {_jwt(operator, operator_id, system_id, "system", {"type": "account", "limits": {}})}
}}
"""
    credentials = folder / "user.creds"
    credentials.write_text(
        f"-----BEGIN NATS USER JWT-----\n{_jwt(account, account_id, user_id, 'user', user_claims)}\n"
        f"------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user_seed}\n------END USER NKEY SEED------\n"
    )
    return config, credentials


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority and what it signed for 127.0.0.1 and for a client, as PEM files."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path

    def server_config(self, *, verify: bool = False) -> str:
        ca = f'ca_file: "{self.ca}", verify: true' if verify else ""
        return f'tls {{ cert_file: "{self.server_cert}", key_file: "{self.server_key}", {ca} }}'


def certificates(folder: Path) -> Certificates:
    """Made with the openssl program; skips where there is none."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program to make certificates with")
    folder.mkdir(parents=True, exist_ok=True)

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    for name, extension in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
        run("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / f"{name}.ext").write_text(extension)
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext")  # fmt: skip
    return Certificates(
        folder / "ca.pem", folder / "server.pem", folder / "server.key", folder / "client.pem", folder / "client.key"
    )
