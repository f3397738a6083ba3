"""AI Configurator behind its spec; tests/aic asks the real package."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.profiles.aic import AicSpec, Pick, aic_profile, aic_spec
from headrace.schemas.errors import ConfigError

SPEC = {"hf_id": "Qwen/Qwen3-32B", "system": "h200_sxm", "backend": "vllm"}
PREFILL_MS = {100: 23.3, 1085: 108.0, 2070: 192.5, 3055: 280.7}  # as 0.12.0 says for this spec


class Engine:
    """Answers as the package's engine does, in ms."""

    @staticmethod
    def from_spec(compiled: bytes) -> "Engine":
        assert compiled == b"spec"
        return Engine()

    def predict_prefill_latency(self, batch: int, isl: int) -> float:
        assert batch == 1
        return PREFILL_MS.get(isl, 0.09 * isl)

    def predict_decode_latency(self, batch: int, isl: int) -> float:
        return 18.2 + 0.05 * batch + 6.7e-5 * batch * isl

    def mixed_step_latency(self, prefill: int, batch: int, isl: int, osl: int) -> float:
        assert osl == 2
        return self.predict_decode_latency(batch, isl) + 0.09 * prefill


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the package; holds what it was called with."""
    calls: dict[str, Any] = {}

    def compile_engine(*args: Any, **spread: int) -> bytes:
        calls["engine"] = (*args, spread)
        return b"spec"

    def estimate_kv_cache(*args: Any, **named: Any) -> dict[str, int]:
        calls["memory"] = (*args, named)
        return {"total_kv_size_tokens": 249_864}

    core = ModuleType("aiconfigurator_core")
    core.AicEngine = Engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", core)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk", ModuleType("aiconfigurator_core.sdk"))
    parts = {"engine": compile_engine, "memory": estimate_kv_cache}
    for name, function in parts.items():
        module = SimpleNamespace(**{function.__name__: function})
        monkeypatch.setitem(sys.modules, f"aiconfigurator_core.sdk.{name}", module)
    return calls


def test_a_prefill_role_is_swept_over_prompts_alone(package: dict[str, Any]) -> None:
    profile = aic_profile(aic_spec(SPEC), "prefill")
    assert profile.prefill is not None
    assert profile.prefill.isl[:4] == (100.0, 1085.0, 2070.0, 3055.0)
    assert profile.prefill.ttft_s[:4] == pytest.approx((0.0233, 0.108, 0.1925, 0.2807))
    assert profile.decode is None
    assert "memory" not in package


def test_a_decode_role_is_swept_over_the_cache_that_the_gpus_have_room_for(package: dict[str, Any]) -> None:
    profile = aic_profile(aic_spec(SPEC), "decode")
    assert profile.prefill is None
    assert profile.decode is not None
    assert profile.decode.max_kv_tokens == 249_864
    assert profile.decode.itl_s[0] == pytest.approx(0.0182 + 5e-5 + 6.7e-8 * 350)
    assert package["memory"][-1]["memory_fraction_kind"] == "of_total"


def test_a_cache_that_is_known_is_not_estimated(package: dict[str, Any]) -> None:
    profile = aic_profile(aic_spec({**SPEC, "max_kv_tokens": 100_000}), "decode")
    assert profile.decode is not None
    assert profile.decode.max_kv_tokens == 100_000
    assert "memory" not in package


def test_an_aggregated_role_is_swept_over_all_kinds(package: dict[str, Any]) -> None:
    profile = aic_profile(aic_spec(SPEC), "agg")
    assert profile.prefill is not None
    assert profile.decode is not None
    assert len(profile.mixed) > 40


def test_the_spread_over_gpus_is_the_roles_own(package: dict[str, Any]) -> None:
    raw = {**SPEC, "backend": "trtllm", "prefill_pick": {"tp": 2}, "decode_pick": {"tp": 1, "dp": 4, "moe_ep": 4}}
    prefill = aic_profile(aic_spec(raw), "prefill").prefill
    assert package["engine"][-1]["tp_size"] == 2
    decode = aic_profile(aic_spec(raw), "decode").decode
    assert package["engine"][-1] == {
        "tp_size": 1,
        "pp_size": 1,
        "attention_dp_size": 4,
        "moe_tp_size": 1,
        "moe_ep_size": 4,
    }
    assert package["memory"][-1]["memory_fraction_kind"] == "of_free"
    assert prefill is not None
    assert prefill.throughput_per_gpu[0] == pytest.approx(100 / 0.0233 / 2)
    assert decode is not None
    assert decode.throughput_per_gpu[0] == pytest.approx(4 * 1 / decode.itl_s[0] / 4)


@pytest.mark.parametrize(
    ("pick", "gpus"),
    [
        (Pick(), 1),
        (Pick(tp=8, dp=8), 8),  # dynamo#8576: not 64
        (Pick(tp=4, pp=2), 8),
        (Pick(tp=1, moe_tp=2, moe_ep=4), 8),
    ],
)
def test_attention_and_expert_parallelism_share_gpus(pick: Pick, gpus: int) -> None:  # T35
    assert pick.gpus == gpus


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "missing required field `hf_id`"),
        ({**SPEC, "sytem": "h100"}, "unknown field `sytem`"),
        ({**SPEC, "prefill_interpolation_granularity": 0}, "prefill_interpolation_granularity"),
        ({**SPEC, "decode_pick": {"tp": 0}}, "decode_pick"),
    ],
)
def test_a_bad_spec_is_refused_by_key(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"aic_interpolation: .*{says}"):
        aic_spec(raw)


def test_what_the_package_cannot_do_is_quoted(package: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_engine(*_: Any, **__: Any) -> bytes:
        raise AssertionError("num_heads 64 should be divisible by tp_size 7")

    monkeypatch.setattr(sys.modules["aiconfigurator_core.sdk.engine"], "compile_engine", compile_engine)
    with pytest.raises(
        ConfigError, match=r"cannot estimate Qwen/Qwen3-32B on h200_sxm with vllm current: num_heads 64"
    ):
        aic_profile(aic_spec(SPEC), "decode")


def test_a_sweep_that_cannot_be_keeps_its_own_words(package: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^sweep of prefill lengths"):
        aic_profile(aic_spec({**SPEC, "sweep_max_context_length": 600}), "prefill")


def test_without_the_package_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", None)
    with pytest.raises(ConfigError, match=r"pip install headrace\[aic\]"):
        aic_profile(AicSpec(hf_id="a", system="b", backend="c"), "decode")
