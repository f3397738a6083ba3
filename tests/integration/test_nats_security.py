"""Every way to say who we are to a NATS server, and what happens when it does not believe us."""

from collections.abc import Callable
from pathlib import Path

import nkeys
import pytest
from nats_identities import certificates, key_pair, operator_config_and_credentials
from nats_support import kill_server, nats_server

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus, NatsOptions
from headrace.schemas.errors import BusError
from headrace.schemas.streams import DECISIONS

A = "ml/llama"


async def works(url: str) -> None:
    """A full round: connect, create, publish, read."""
    bus = NatsBus(url)
    await bus.open()
    await bus.ensure([DECISIONS])
    reader = await bus.read(DECISIONS)
    await bus.publish(Outgoing("decisions", A, b"1"))
    assert [message.data for message in await reader.next(timeout=10)] == [b"1"]
    await bus.close()


async def is_refused(url: str) -> str:
    """Refused at once, not after the patience; the message."""
    bus = NatsBus(url)
    with pytest.raises(BusError, match=r"refuses us: .*Check user, token, credentials or nkey") as caught:
        await bus.open()
    await bus.close()
    return f"{caught.value}"


def at(server: EmbeddedNats, who: str = "", query: str = "", scheme: str = "nats") -> str:
    return f"{scheme}://{who}127.0.0.1:{server.port}{query}"


async def test_user_and_password(tmp_path: Path) -> None:
    config = 'authorization { user: planner, password: "p@ss/word?" }'
    with nats_server(tmp_path, config=config) as server:
        await works(at(server, "planner:p%40ss%2Fword%3F@"))
        assert "wrong" not in await is_refused(at(server, "planner:wrong@"))
        await is_refused(at(server))


async def test_a_token(tmp_path: Path) -> None:
    with nats_server(tmp_path, config="authorization { token: s3cret }") as server:
        await works(at(server, "s3cret@"))
        assert "guess" not in await is_refused(at(server, "guess@"))


async def test_an_nkey_seed_file(tmp_path: Path) -> None:
    _, public, seed = key_pair(nkeys.PREFIX_BYTE_USER)
    _, _, other_seed = key_pair(nkeys.PREFIX_BYTE_USER)
    (tmp_path / "seed").write_text(seed + "\n")
    (tmp_path / "other").write_text(other_seed)
    with nats_server(tmp_path / "store", config=f"authorization {{ users: [ {{ nkey: {public} }} ] }}") as server:
        await works(at(server, query=f"?nkey={tmp_path / 'seed'}"))
        await is_refused(at(server, query=f"?nkey={tmp_path / 'other'}"))


async def test_a_credentials_file(tmp_path: Path) -> None:
    config, credentials = operator_config_and_credentials(tmp_path)
    (tmp_path / "stranger").mkdir()
    _, stranger = operator_config_and_credentials(tmp_path / "stranger")
    with nats_server(tmp_path / "store", config=config) as server:
        await works(at(server, query=f"?creds={credentials}"))
        await is_refused(at(server, query=f"?creds={stranger}"))


async def test_tls_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    made = certificates(tmp_path / "pki")
    strangers = certificates(tmp_path / "strangers")
    with nats_server(tmp_path / "store", config=made.server_config()) as server:
        await works(at(server, query=f"?ca={made.ca}", scheme="tls"))
        await works(at(server, query=f"?ca={made.ca}"))
        assert "certificate verify failed" in await is_refused(at(server, query=f"?ca={strangers.ca}", scheme="tls"))
        assert "certificate verify failed" in await is_refused(at(server, scheme="tls"))
        assert "certificate verify failed" in await is_refused(at(server))


async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    made = certificates(tmp_path / "pki")
    with nats_server(tmp_path / "store", config=made.server_config(verify=True)) as server:
        await works(at(server, query=f"?ca={made.ca}&cert={made.client_cert}&key={made.client_key}", scheme="tls"))
        assert "certificate" in await is_refused(at(server, query=f"?ca={made.ca}", scheme="tls"))


async def test_the_name_in_the_certificate_is_checked(tmp_path: Path) -> None:
    made = certificates(tmp_path / "pki")
    with nats_server(tmp_path / "store", config=made.server_config()) as server:
        assert "certificate verify failed" in await is_refused(
            at(server, query=f"?ca={made.ca}&tls_hostname=nats.example", scheme="tls")
        )


async def test_a_server_without_tls_never_hears_our_password(tmp_path: Path) -> None:
    with nats_server(tmp_path, config="debug: true\ntrace: true\nauthorization { token: s3cret }") as server:
        assert "offers no TLS" in await is_refused(at(server, "s3cret@", scheme="tls"))
        assert "CONNECT" not in server.log_path.read_text()


@pytest.mark.parametrize("way", ["password", "tls"])
async def test_we_are_let_in_again_after_a_restart(tmp_path: Path, way: str) -> None:
    made = certificates(tmp_path / "pki")
    config, who, query = {
        "password": ("authorization { user: a, password: b }", "a:b@", ""),
        "tls": (made.server_config(), "", f"?ca={made.ca}"),
    }[way]
    with nats_server(tmp_path / "store", config=config) as server:
        bus = NatsBus(at(server, who, query))
        await bus.open()
        await bus.ensure([DECISIONS])
        reader = await bus.read(DECISIONS, after=0)
        await bus.publish(Outgoing("decisions", A, b"1"))
        kill_server(server)
        server.start()
        await bus.publish(Outgoing("decisions", A, b"2"))
        got: list[bytes] = []
        while len(got) < 2:
            got += [message.data for message in await reader.next(timeout=10)]
        assert got == [b"1", b"2"]
        await bus.close()


async def test_a_user_who_may_do_little_needs_an_inbox_of_its_own(tmp_path: Path) -> None:
    config = """authorization { users: [ { user: a, password: b, permissions: {
      publish: ["headrace.>", "$JS.API.>", "$JS.FC.>", "_INBOX_a.>"], subscribe: ["_INBOX_a.>"] } } ] }"""
    with nats_server(tmp_path, config=config) as server:
        await works(at(server, "a:b@", "?inbox_prefix=_INBOX_a"))


async def test_a_subject_that_we_may_not_use_is_named_at_once(tmp_path: Path) -> None:
    config = """authorization { users: [
      { user: all, password: b },
      { user: reader, password: b, permissions: { publish: ["$JS.API.>", "$JS.FC.>"] } },
      { user: deaf, password: b, permissions: { subscribe: ["_INBOX_deaf.>"] } } ] }"""
    with nats_server(tmp_path, config=config) as server:
        await works(at(server, "all:b@"))
        bus = NatsBus(at(server, "reader:b@"))
        await bus.open()
        with pytest.raises(BusError, match=r"may not publish ml/llama on decisions: .*headrace.decisions.ml.llama"):
            await bus.publish(Outgoing("decisions", A, b"1"))
        with pytest.raises(BusError, match=r"may not publish on decisions: .*headrace.decisions.ml.llama"):
            await bus.publish_many([Outgoing("decisions", A, b"1")])
        reader = await bus.read(DECISIONS, after=0)
        assert len(await reader.next(timeout=10)) == 1
        await bus.close()
        deaf = NatsBus(at(server, "deaf:b@"))
        with pytest.raises(BusError, match=r"may not do what the bus needs: .*subscription"):
            await deaf.open()


async def test_a_server_without_jetstream_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: Callable[[EmbeddedNats, Path], str] = EmbeddedNats._config_text
    monkeypatch.setattr(
        EmbeddedNats, "_config_text", lambda self, ports: plain(self, ports).partition("jetstream {")[0]
    )
    with nats_server(tmp_path) as server:
        bus = NatsBus(server.url)
        with pytest.raises(BusError, match=r"no JetStream: enable it"):
            await bus.open()
        await bus.close()


def test_secrets_are_not_shown() -> None:
    options = NatsOptions.from_url("nats://planner:s3cret@127.0.0.1:4222")
    assert "s3cret" not in f"{options!r} {options.address}"
    options = NatsOptions.from_url("nats://t0ken@127.0.0.1:4222")
    assert "t0ken" not in f"{options!r} {options.address}"
