"""What a NATS URL says, and what it must not say."""

from pathlib import Path

import pytest

from headrace.connectors.bus.nats import NatsOptions
from headrace.schemas.errors import ConfigError

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"


def test_a_host_alone_gets_the_port_of_nats() -> None:
    assert NatsOptions.from_url("nats://broker").servers == ("nats://broker:4222",)
    assert NatsOptions.from_url("nats://[::1]").servers == ("nats://[::1]:4222",)


def test_several_servers_share_the_rest() -> None:
    options = NatsOptions.from_url("tls://u:p@one:1,two:2?name=planner")
    assert options.servers == ("tls://one:1", "tls://two:2")
    assert (options.user, options.password, options.name, options.tls) == ("u", "p", "planner", True)


def test_user_and_password_are_decoded() -> None:
    options = NatsOptions.from_url("nats://a%40b:p%3Aw%2F@broker")
    assert (options.user, options.password, options.token) == ("a@b", "p:w/", None)


def test_one_word_before_the_at_sign_is_a_token() -> None:
    options = NatsOptions.from_url("nats://t%20k@broker")
    assert (options.user, options.token) == (None, "t k")


def test_patience_and_replicas_are_numbers() -> None:
    options = NatsOptions.from_url("nats://broker?patience_s=2.5&replicas=3")
    assert (options.patience_s, options.replicas) == (2.5, 3)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://broker", "nats://HOST:PORT"),
        ("nats://", "nats://HOST:PORT"),
        ("nats://broker/path", "nats://HOST:PORT"),
        ("nats://broker:port", "broker:port"),
        ("nats://:4222", "a host is needed"),
        ("nats://broker?cred=x", "unknown option 'cred'; known are creds, nkey"),
        ("nats://broker?replicas=many", "replicas='many' is no number"),
        ("nats://broker?creds=/no/such", "credentials file /no/such does not exist"),
        ("nats://broker?nkey=/no/such", "nkey seed file /no/such does not exist"),
        ("nats://broker?ca=/no/such", "CA file /no/such does not exist"),
        ("nats://broker?cert=/no/such", "cert and key go together"),
        ("nats://broker?patience_s=0", "patience_s"),
        ("nats://broker?patience_s=100", "patience_s"),
        ("nats://broker?patience_s=nan", "patience_s"),
        ("nats://broker?replicas=0", "replicas"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_with_the_rule(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"NATS.*{says}"):
        NatsOptions.from_url(url)


def test_a_refused_url_does_not_show_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        NatsOptions.from_url("nats://u:s3cret@broker/path")
    assert "s3cret" not in f"{caught.value}"


def test_two_identities_are_refused(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text(SEED)
    with pytest.raises(ConfigError, match="give one of credentials"):
        NatsOptions.from_url(f"nats://token@broker?nkey={seed}")


def test_a_user_without_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="go together"):
        NatsOptions(user="u")


def test_a_password_in_a_server_is_refused_so_that_it_cannot_show_up_in_messages() -> None:
    with pytest.raises(ConfigError, match="own options") as caught:
        NatsOptions(servers=("nats://u:s3cret@broker",))
    assert "s3cret" not in f"{caught.value}"


@pytest.mark.parametrize(
    "content", ["", "no seed", "SUXXXX", "SAANWFZ3JINNPERWT3ALE45U7GYT2ZDW6GJUIVPDKUF6GKAX6AISZJMAS4"]
)
def test_a_file_without_a_user_seed_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "seed"
    path.write_text(content)
    for option in ("nkey", "creds"):
        with pytest.raises(ConfigError, match=f"{path} holds no usable user seed") as caught:
            NatsOptions.from_url(f"nats://broker?{option}={path}")
        assert not content or content not in f"{caught.value}"


def test_tls_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    with pytest.raises(ConfigError, match="TLS files cannot be used"):
        NatsOptions(ca=path).ssl_context()


def test_without_tls_options_the_server_decides() -> None:
    assert NatsOptions().ssl_context() is None
    assert NatsOptions(tls=True).ssl_context() is not None
