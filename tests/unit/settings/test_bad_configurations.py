"""`headrace run` with a configuration that cannot be: exit code 2, and one line that names the input and the remedy."""

from pathlib import Path

import pytest

from headrace.streams.cli import run_service
from headrace.streams.cli.main import EXIT_CONFIG, main

BOTH_LOOPS = "optimization_target: sla\nenable_load_scaling: true\n"

# file content -> words that the line must hold
BAD: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty": ("", ("is empty", "dgd: NAMESPACE/NAME")),
    "comments_alone": ("# nothing yet\n", ("is empty",)),
    "binary": (bytes(range(256)), ("is not YAML or JSON", "decode byte 0x80")),
    "a_nul": ("dgd: \0", ("is not YAML or JSON",)),
    "a_list": ("- a", ("must hold a mapping", "not list")),
    "a_word": ("hello", ("must hold a mapping", "not str")),
    "an_open_bracket": ("a: [1,\nb: 2", ("is not YAML or JSON", "line 2")),
    "a_tab": ("a:\n\t- b", ("is not YAML or JSON", "line 2")),
    "deeply_nested": ("[" * 5000, ("is not YAML or JSON",)),
    "a_python_object": ("x: !!python/object/apply:os.system [ls]", ("is not YAML or JSON", "constructor")),
    "a_number_as_key": ("1: 2", ("has the key 1", "put it in quotes")),
    "yes_as_key": ("on: 2", ("has the key True", "put it in quotes")),
    "unknown_key": ("ttft_msec: 3", ("'ttft_msec'", "did you mean 'ttft_ms'?")),
    "unknown_key_of_a_section": ("bus: {urll: x}", ("'urll'", "`$.bus`", "did you mean 'url'?")),
    "unknown_key_of_a_source": (
        "sources: {frontend: {urls: [], intervall_seconds: 5}}",
        ("'intervall_seconds'", "`$.sources.frontend`", "did you mean 'interval_seconds'?"),
    ),
    "unknown_key_of_scheduling": ("scheduling: {scale_interval: 5}", ("did you mean 'scale_interval_seconds'?",)),
    "key_of_the_reference_misspelt": ("metric_reporting_prometheus_prt: 1", ("'metric_reporting_prometheus_port'?",)),
    "value_of_the_reference_misspelt": ("backend: vlm", ("'vlm'", "`$.backend`", "vllm, sglang, trtllm, mocker")),
    "unknown_key_of_the_plugin_registry": (
        "plugin_registration: {auth: {secrets: 1}}",
        ("`$.plugin_registration.auth`", "did you mean 'static_secrets'?"),
    ),
    "unknown_key_of_aic": (
        "aic_interpolation: {hf_id: q, system: h200_sxm, backend: vllm, prefill_granularity: 3}",
        ("`$.aic_interpolation`", "did you mean 'prefill_interpolation_granularity'?"),
    ),
    "unknown_key_of_a_pick_of_aic": (
        "aic_interpolation: {hf_id: q, system: h200_sxm, backend: vllm, decode_pick: {moe_tpp: 3}}",
        ("`$.aic_interpolation.decode_pick`", "did you mean 'moe_tp'?"),
    ),
    "unknown_key_of_the_gateway": ("scheduling: {gateway: {enable: true}}", ("did you mean 'enabled'?",)),
    "a_budget_of_several_deployments": ("environment: global-planner", ("max_gpu_budget", "advisory: true")),
    "a_power_budget": ("enable_power_awareness: true\ntotal_gpu_power_limit: 900", ("power is not budgeted here",)),
    "a_plugin_that_nobody_asks": (
        "scheduling: {external_plugins: [{plugin_id: cap, plugin_type: constrain}]}",
        ("scheduling.external_plugins", "publish proposals on the bus"),
    ),
    "a_plugin_in_the_process": ("plugin_registration: {in_process_plugins: [{module: m}]}", ("take it out",)),
    "a_flag_of_the_old_planner": ("adjustment-interval: 60", ("Dynamo 0.4", "throughput_adjustment_interval_seconds")),
    "floor_above_ceiling": (
        "min_gpu_budget: 9\nmax_gpu_budget: 4",
        ("min_gpu_budget (9)", "max_gpu_budget (4)", "lower the first or raise the second"),
    ),
    "ceiling_below_the_least_fleet": (
        "max_gpu_budget: 3\nprefill_engine_num_gpu: 2\ndecode_engine_num_gpu: 2",
        ("max_gpu_budget (3)", "4 GPUs", "lower min_endpoint"),
    ),
    "sensitivity_too_high": ("load_scaling_down_sensitivity: 180", ("<= 100", "load_scaling_down_sensitivity")),
    "sensitivity_too_low": ("load_scaling_down_sensitivity: -1", (">= 0", "load_scaling_down_sensitivity")),
    "sensitivity_no_number": ("load_scaling_down_sensitivity: .nan", (">= 0", "load_scaling_down_sensitivity")),
    "an_infinite_target": ("ttft_ms: .inf", ("<=", "ttft_ms")),
    "a_target_in_words": ("ttft_ms: fast", ("`float`", "`str`", "ttft_ms")),
    "a_date": ("ttft_ms: 2026-01-01", ("`float`", "`date`", "ttft_ms")),
    "intervals_the_wrong_way_round": (
        BOTH_LOOPS + "load_adjustment_interval_seconds: 60\nthroughput_adjustment_interval_seconds: 60",
        ("load_adjustment_interval_seconds (60)", "Lower the first or raise the second"),
    ),
    "a_tick_that_divides_nothing": (
        "scheduling: {scale_interval_seconds: 7}",
        ("scheduling.scale_interval_seconds (7)", "must divide", "choose a divisor"),
    ),
    "an_interval_below_a_millisecond": ("load_adjustment_interval_seconds: 0.0001", ("milliseconds", "round it")),
    "both_loops_off": (
        "optimization_target: sla\nenable_throughput_scaling: false",
        ("nothing would ever be decided", "Enable one of them"),
    ),
    "two_spellings_of_one_key": ("ttft: 3\nttft_ms: 4", ("ttft_ms", "keep one of them")),
    "an_unknown_mode": ("mode: turbo", ("'turbo'", "mode")),
    "an_unknown_forecaster": ("load_predictor: crystal", ("'crystal'", "use constant, kalman")),
    "a_number_beyond_all_bounds": ("min_endpoint: 99999999999999999999999999", ("<= 100000", "min_endpoint")),
    "a_dgd_without_namespace": ("dgd: llama", ("'llama'", "NAMESPACE/NAME")),
    "a_dgd_with_a_blank": ("dgd: a b/c", ("'a b/c'", "NAMESPACE/NAME")),
    "no_dgd": ("dgd:", ("`null`", "dgd")),
    "sources_as_a_number": ("sources: 3", ("`object`", "`int`", "sources")),
    "bus_as_a_number": ("bus: 3", ("`object`", "`int`", "bus")),
    "a_kafka_without_a_broker": ("bus: 'kafka://'", ("kafka://HOST:PORT",)),
    "an_identity_of_another_bus": ("bus: {url: 'kafka://h', token: t}", ("bus.token is of NATS", "bus.sasl")),
    "a_mechanism_that_kafka_has_not": ("bus: {url: 'kafka://h', sasl: MD5}", ("'MD5'", "bus.sasl")),
    "no_bus": ("bus: http://x", ("'http'", "nats://HOST:PORT")),
    "a_prefix_that_is_no_subject": ("bus: {prefix: a b}", ("'a b'", "letters, digits")),
    "two_identities": (
        "bus: {url: 'nats://127.0.0.1:1', token: a, user: b, password: c}",
        ("credentials, nkey_seed, user and password, token", "not several"),
    ),
    "credentials_that_are_not_there": ("bus: {url: 'nats://h', credentials: /no.creds}", ("/no.creds", "not exist")),
    "a_frontend_without_scheme": (
        "sources: {frontend: {urls: [frontend-0]}}",
        ("'frontend-0'", "write http://host:port/metrics"),
    ),
    "no_frontend": ("sources: {frontend: {urls: []}}", ("sources.frontend.urls is empty", "or remove frontend")),
    "a_role_that_is_not_planned": ("sources: {inventory: {decoder: 3}}", ("decoder", "plans prefill, decode")),
    "a_negative_count": ("sources: {inventory: {decode: -3}}", (">= 0", "sources.inventory")),
    "a_component_of_no_role": (
        "sources: {dynamo_fpm: {components: {x: encode}}}",
        ("sources.dynamo_fpm.components", "encode", "plans prefill, decode"),
    ),
    "a_namespace_that_is_no_subject": ("sources: {dynamo_fpm: {namespace: a.b}}", ("'a.b'", "namespace")),
    "two_executors": ("executor: {exec: ./a, dry_run: true}", ("executor", "either exec (a command) or dry_run")),
    "no_executor": ("executor: {}", ("executor", "either exec (a command) or dry_run")),
    "an_open_quote": ("executor: {exec: './a \"b'}", ("quote it as for a shell",)),
    "a_clock_that_stands": ("clock: {speed: 0}", ("> 0", "clock.speed")),
    "a_port_that_is_none": ("metrics: {port: 99999}", ("<= 65535", "metrics.port")),
    "a_replay_of_nothing": ("sources: {replay: {}}", ("sources.replay", "give fpm (a file), metrics (a folder)")),
    "a_replay_of_what_is_not_there": ("sources: {replay: {fpm: /no.gz}}", ("sources.replay.fpm", "/no.gz")),
    "a_fleet_of_another_mode": ("simulator: {fleet: {agg: 3}}", ("simulator.fleet names agg", "prefill, decode")),
}


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(_: object) -> None:
        raise AssertionError("the planner started")

    monkeypatch.setattr(run_service, "run_until_stopped", started)


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that a command says when it refuses its configuration."""
    with pytest.raises(SystemExit) as ended:
        main(["run", *args])
    assert ended.value.code == EXIT_CONFIG
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headrace: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_in_one_line(
    content: str | bytes, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "planner.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refused(capsys, "-c", str(path))
    for word in words:
        assert word in said


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "missing.yaml cannot be read: No such file" in refused(capsys, "-c", str(tmp_path / "missing.yaml"))


def test_a_folder_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{tmp_path} cannot be read: Is a directory" in refused(capsys, "-c", str(tmp_path))


@pytest.mark.parametrize(
    ("flags", "words"),
    {
        "no_value": (["--set", "ttft_ms"], ["--set 'ttft_ms'", "write KEY=VALUE"]),
        "no_yaml": (["--set", "ttft_ms=a: b: c"], ["--set 'ttft_ms=a: b: c'", "quote it"]),
        "no_section": (["--set", "ttft_ms.x=3", "--set", "ttft_ms.x.y=3"], ["ttft_ms.x.y", "is no section"]),
        "unknown": (["--set", "ttft_sec=3"], ["did you mean 'ttft_ms'?"]),
        "dgd": (["--dgd", "llama"], ["'llama'", "NAMESPACE/NAME"]),
        "bus": (["--bus", "amqp://x"], ["'amqp'", "nats://HOST:PORT"]),
    }.values(),
)
def test_a_bad_flag_is_refused_in_one_line(
    flags: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *flags)
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("HEADRACE_TTFT_MS", "fast", "ttft_ms"),
        ("HEADRACE_DGD", "a: b: c", "HEADRACE_DGD"),
        ("HEADRACE_BUS_URL", "ftp://x", "'ftp'"),
        ("PLANNER_PROMETHEUS_PORT", "http", "metrics.port"),
    ],
)
def test_a_bad_environment_variable_is_refused_in_one_line(
    name: str, value: str, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert word in refused(capsys)
