"""AI Configurator: what tables of measured kernels say of an engine that nobody has started yet.

Needs the extra: pip install headrace[aic]. A model whose configuration the package does not carry is looked up at its
model hub, so that may need the network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import msgspec

from headrace.connectors.profiles.sweep import Grid, sweep
from headrace.schemas.aic import AicSpec, Pick
from headrace.schemas.base import AGG, PREFILL, Role
from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import EngineProfile

MS = 1000.0
MEMORY_SHARE = 0.9  # of a GPU's memory that an engine takes, as engines do where nobody says otherwise
FREE_OF = {"trtllm": "of_free"}  # what that share is of; the others take it of all memory

T = TypeVar("T")


def aic_spec(raw: Mapping[str, Any]) -> AicSpec:
    """The spec as it is written in a configuration. Raises ConfigError naming the key and the rule."""
    try:
        return msgspec.convert(raw, AicSpec)
    except msgspec.ValidationError as e:
        raise ConfigError(f"aic_interpolation: {e}") from e


def aic_profile(spec: AicSpec, role: Role) -> EngineProfile:
    """The swept profile of the engines of a role.

    Raises ConfigError: the extra is not installed, or the package has no tables for this model, system, backend or
    spread; its own words are quoted.
    """
    pick = spec.pick(role)
    estimator = AicEstimator.of(spec, pick)
    needs_kv = role != PREFILL
    grid = Grid(
        context_length=spec.sweep_max_context_length,
        max_kv_tokens=(spec.max_kv_tokens or kv_tokens(spec, pick)) if needs_kv else 1,
        gpus=pick.gpus,
        ranks=pick.dp,
        isl=spec.isl,
        osl=spec.osl,
        prefill_granularity=spec.prefill_interpolation_granularity,
        decode_granularity=spec.decode_interpolation_granularity,
    )
    return _ask(spec, sweep, estimator, grid, prefill=role in (PREFILL, AGG), decode=needs_kv)


@dataclass(frozen=True, slots=True)
class AicEstimator:
    """An `Estimator` over AI Configurator's compiled engine, whose times are in ms."""

    engine: Any

    @classmethod
    def of(cls, spec: AicSpec, pick: Pick) -> "AicEstimator":
        engine, core = _package("sdk.engine"), _package()
        spread = {
            "tp_size": pick.tp,
            "pp_size": pick.pp,
            "attention_dp_size": pick.dp,
            "moe_tp_size": pick.moe_tp,
            "moe_ep_size": pick.moe_ep,
        }
        compiled = _ask(
            spec, engine.compile_engine, spec.hf_id, spec.system, spec.backend, spec.backend_version, **spread
        )
        return cls(_ask(spec, core.AicEngine.from_spec, compiled))

    def prefill_s(self, isl: int) -> float:
        return float(self.engine.predict_prefill_latency(1, isl)) / MS

    def decode_s(self, requests: int, context_length: int) -> float:
        return float(self.engine.predict_decode_latency(requests, context_length)) / MS

    def mixed_s(self, prefill_tokens: int, requests: int, context_length: int) -> float:
        return float(self.engine.mixed_step_latency(prefill_tokens, requests, context_length, 2)) / MS


def kv_tokens(spec: AicSpec, pick: Pick) -> int:
    """Tokens of KV cache that one rank has room for. Raises ConfigError where the model does not fit."""
    found = _ask(
        spec,
        _package("sdk.memory").estimate_kv_cache,
        spec.hf_id,
        spec.system,
        spec.backend,
        spec.backend_version,
        max_num_tokens=8192,
        max_batch_size=512,
        memory_fraction_kind=FREE_OF.get(spec.backend, "of_total"),
        memory_fraction_value=MEMORY_SHARE,
        tp_size=pick.tp,
        pp_size=pick.pp,
        attention_dp_size=pick.dp,
        moe_tp_size=pick.moe_tp,
        moe_ep_size=pick.moe_ep,
    )
    return int(found["total_kv_size_tokens"])


def _ask(spec: AicSpec, function: Callable[..., T], *args: Any, **named: Any) -> T:
    """Call into the package. It raises whatever its depths raise, so whatever comes is its refusal."""
    try:
        return function(*args, **named)
    except ConfigError:
        raise
    except Exception as e:
        raise ConfigError(
            f"AI Configurator cannot estimate {spec.hf_id} on {spec.system} with {spec.backend} "
            f"{spec.backend_version}: {e}. Correct aic_interpolation or remove it."
        ) from e


def _package(module: str = "") -> Any:
    try:
        return import_module(f"aiconfigurator_core.{module}" if module else "aiconfigurator_core")
    except ImportError as e:
        raise ConfigError("AI Configurator is not installed: pip install headrace[aic]") from e
