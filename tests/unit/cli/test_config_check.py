"""`headrace config check`: valid or not, what would run, and what is odd."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from headrace.schemas.errors import ConfigError, HeadraceError
from headrace.streams.cli.config import MASK, effective, without_userinfo
from headrace.streams.cli.main import cli
from headrace.streams.settings import settings

GOOD: dict[str, Any] = {
    "optimization_target": "sla",
    "enable_load_scaling": True,
    "load_predictor": "constant",
    "prefill_engine_num_gpu": 1,
    "decode_engine_num_gpu": 2,
    "max_gpu_budget": 16,
    "dgd": "ml/llama-70b",
    "bus": {"url": "nats://localhost:4222"},
    "sources": {
        "dynamo_fpm": {},
        "frontend": {"urls": ["http://frontend-0:8000/metrics"]},
        "inventory": {"prefill": 1, "decode": 2},
    },
}


@pytest.fixture
def check(tmp_path: Path):
    """Checks GOOD with some keys replaced."""

    def run(*args: str, env: dict[str, str] | None = None, **replaced: Any) -> Result:
        path = tmp_path / "planner.yaml"
        path.write_text(yaml.safe_dump(GOOD | replaced))
        return CliRunner(env=env).invoke(cli, ["config", "check", str(path), *args])

    return run


def warnings(result: Result) -> list[str]:
    assert result.exit_code == 0, result.exception
    lines = (result.stdout + result.stderr).splitlines()
    return [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]


def refusal(result: Result) -> str:
    assert isinstance(result.exception, HeadraceError), result.output
    return str(result.exception)


def test_a_good_configuration_is_valid_and_nothing_is_odd_about_it(check) -> None:
    result = check()
    assert result.exit_code == 0
    assert "planner.yaml: valid" in result.stdout
    assert warnings(result) == []


def test_it_says_what_would_run(check) -> None:
    lines = check(executor={"exec": "sh scale.sh"}, metrics={"port": 9085}).stdout
    for text in (
        "ml/llama-70b, mode disagg: prefill, decode",
        "sla: TTFT 500 ms, ITL 50 ms",
        "throughput every 180 s (constant forecast) and load every 5 s; base tick 5 s",
        "at most 16 GPUs; prefill 1 GPU each, at least 1; decode 2 GPUs each, at least 1",
        "nats://localhost:4222, prefix headrace",
        "FPM events of Dynamo's namespace llama-70b on the bus's server",
        "frontends http://frontend-0:8000/metrics every 5 s",
        "declared inventory decode 2, prefill 1",
        "http://127.0.0.1:9085/metrics",
        "'sh scale.sh' for each decision, up to 600 s",
    ):
        assert text in lines


def test_an_unknown_key_is_refused_with_the_nearest(check) -> None:
    assert "unknown key 'ttft_msec': did you mean 'ttft_ms'?" in refusal(check(ttft_msec=3))


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        ({"load_predictor": "oracle"}, "load_predictor 'oracle' is unknown"),
        ({"bus": {"url": "amqp://x"}}, "amqp"),
        ({"bus": {"url": "kafka://x", "user": "me"}}, "user and password go together"),
        ({"bus": {"url": "kafka://x", "tls_ca": "none.pem"}}, "CA file none.pem does not exist"),
        ({"bus": {"prefix": "a b"}}, "prefix 'a b'"),
        ({"bus": {"url": "nats://h", "credentials": "none.creds"}}, "credentials file none.creds does not exist"),
        ({"bus": {"url": "nats://me:pw@h", "token": "t"}}, "give one of credentials"),
        ({"bus": {"url": "nats://h", "user": "me"}}, "user and password go together"),
        ({"sources": {"frontend": {"urls": ["frontend:8000"]}}}, "'frontend:8000' is no address"),
        ({"sources": {"frontend": {"urls": []}}}, "sources.frontend.urls is empty"),
        ({"sources": {"dynamo_fpm": {"url": "http://x"}}}, "nats://HOST:PORT"),
        ({"sources": {"dynamo_fpm": {"namespace": "a.b"}}}, "'a.b' cannot be a Dynamo namespace"),
        ({"sources": {"replay": {"fpm": "none.jsonl.gz"}}}, "sources.replay.fpm: none.jsonl.gz does not exist"),
        ({"sources": {"dynamo_fpm": {}}, "bus": {"url": "memory://"}}, "sources.dynamo_fpm.url is needed"),
        ({"executor": {}}, "give either exec"),
        ({"executor": {"exec": "x", "dry_run": True}}, "give either exec"),
        ({"executor": {"exec": "'x"}}, "quote it"),
        ({"simulator": {"presett": "70b"}}, "simulator:"),
        ({"simulator": {"fleet": {"agg": 2}}}, "simulator.fleet names agg"),
    ],
    ids=str,
)
def test_every_part_that_is_named_is_checked(check, replaced: dict[str, Any], says: str) -> None:
    assert says in refusal(check(**replaced))


def test_a_file_that_is_not_there_is_refused() -> None:
    assert "cannot be read" in refusal(CliRunner().invoke(cli, ["config", "check", "none.yaml"]))


def test_set_and_the_environment_are_checked_too(check) -> None:
    assert "`$.ttft_ms`" in refusal(check("--set", "ttft_ms=-1"))
    assert "`$.itl_ms`" in refusal(check(env={"HEADRACE_ITL_MS": "-1"}))


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        ({"ttft_ms": 0.2}, "ttft_ms is 0.2 milliseconds; if seconds were meant, write 200"),
        ({"itl": 0.01}, "itl_ms is 0.01 milliseconds; if seconds were meant, write 10"),
        ({"max_gpu_budget": -1}, "no ceiling on GPUs"),
        ({"max_gpu_budget": 3}, "max_gpu_budget (3) leaves no room above the least fleet (3 GPUs)"),
        ({"decode_min_endpoint": 0}, "decode may be scaled to zero"),
        ({"load_scaling_down_sensitivity": 0}, "never scales down"),
        ({"decode_engine_num_gpu": None}, "GPUs per decode replica are unknown: scale-ups are refused"),
        ({"optimization_target": "latency", "ttft_ms": 300}, "ttft_ms has no effect"),
        ({"enable_load_scaling": False, "load_scaling_down_sensitivity": 50}, "the load loop is off"),
        ({"enable_throughput_scaling": False}, "load_predictor has no effect: the throughput loop is off"),
        (
            {"no_correction": True, "capacity_policy": "reference"},
            "no_correction has no effect: capacity_policy is 'ref",
        ),
        ({"capacity_policy": "correction", "profile_results_dir": "/none"}, "profile_results_dir (/none) is no folder"),
        ({"profile_results_dir": "/none"}, "profile_results_dir (/none) is no folder here"),
        ({"benchmark_files": {"decode": "/none"}}, "benchmark_files: /none of decode is no file here"),
        ({"advisory": True, "executor": {"dry_run": True}}, "advisory is true and an executor is given"),
        ({"executor": {"exec": "sh x"}, "ack_timeout_seconds": 60}, "longer than ack_timeout_seconds (60)"),
        ({"executor": {"exec": "no-such-program-here"}}, "there is no program 'no-such-program-here' here"),
        ({"clock": {"speed": 30}}, "clock.speed is 30 with live sources"),
        ({"bus": {"url": "nats://far", "token": "t"}}, "in plain text"),
    ],
    ids=str,
)
def test_odd_but_legal_choices_are_warnings(check, replaced: dict[str, Any], says: str) -> None:
    found = warnings(check(**replaced))
    assert [text for text in found if says in text] != [], found


@pytest.mark.parametrize(
    ("left_out", "says"),
    [("inventory", "no_inventory"), ("dynamo_fpm", "no_fpm_data"), ("frontend", "no_traffic_data")],
)
def test_an_input_that_nobody_provides_is_a_warning_with_the_reason_to_expect(check, left_out: str, says: str) -> None:
    rest = {name: value for name, value in GOOD["sources"].items() if name != left_out}
    found = warnings(check(sources=rest))
    assert len(found) == 1
    assert says in found[0]


def test_frontends_scraped_too_rarely_are_a_warning(check) -> None:
    frontend = {"urls": ["http://f/metrics"], "interval_seconds": 120}
    assert "scrape more often" in warnings(check(sources=GOOD["sources"] | {"frontend": frontend}))[0]


def test_recorded_beside_live_input_is_a_warning(check, tmp_path: Path) -> None:
    found = warnings(check(sources=GOOD["sources"] | {"replay": {"metrics": str(tmp_path)}}))
    assert "recorded and live input would mix" in found[0]


def test_a_secret_on_loopback_or_over_tls_is_no_warning(check) -> None:
    assert warnings(check(bus={"url": "nats://localhost", "token": "t"})) == []
    assert warnings(check(bus={"url": "tls://far", "token": "t"})) == []


def test_a_misspelt_variable_is_a_warning_and_a_foreign_one_is_none(check) -> None:
    env = {"HEADRACE_TTFT_MSS": "300", "HEADRACE_SERVICE_PORT": "80"}  # Kubernetes sets the second for a service
    assert warnings(check(env=env)) == [
        "the environment variable HEADRACE_TTFT_MSS means nothing; did you mean HEADRACE_TTFT_MS?"
    ]


def test_the_effective_configuration_goes_alone_to_stdout(check) -> None:
    result = check("--print", "--set", "ttft_ms=300", env={"HEADRACE_ITL_MS": "20"})
    shown = yaml.safe_load(result.stdout)
    assert shown["ttft_ms"] == 300.0
    assert shown["itl_ms"] == 20.0
    assert shown["kalman_min_points"] == 5  # a default
    assert "valid" in result.stderr


def test_the_effective_configuration_is_a_configuration_of_the_same_meaning() -> None:
    found, again = settings(GOOD), settings(yaml.safe_load(yaml.safe_dump(effective(settings(GOOD)))))
    assert (again.planner, again.edges) == (found.planner, found.edges)


def test_secrets_are_masked_wherever_they_stand(check) -> None:
    bus = {"url": "nats://localhost", "user": "me", "password": "s3cret-1"}
    sources = {
        "dynamo_fpm": {"url": "nats://s3cret-2@dynamo:4222"},
        "frontend": {"urls": ["http://me:s3cret-3@frontend/metrics"]},
    }
    for args in ((), ("--print",)):
        result = check(*args, bus=bus, sources=sources)
        assert result.exit_code == 0, result.exception
        assert "s3cret" not in result.output
    assert MASK in result.stdout


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://a:b@h:1,h2:2", f"nats://{MASK}@h:1,h2:2"),
        ("http://h/x@y", "http://h/x@y"),
        ("embedded", "embedded"),
        ("a@b", "a@b"),
    ],
)
def test_only_the_user_of_an_address_is_hidden(text: str, shown: str) -> None:
    assert without_userinfo(text) == shown


def test_a_refused_configuration_is_a_configuration_error(check) -> None:
    with pytest.raises(ConfigError):
        raise check(mode="none").exception


def test_keys_of_the_reference_are_explained(check) -> None:
    found = warnings(check(control_api_port=9000, backend="vllm"))
    assert "control_api_port: publish a configuration revision on the config stream" in found
    assert [text for text in found if text.startswith("accepted without effect: backend")]
