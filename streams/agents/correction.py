"""The correction loop: fleets sized by profiles, and by how far off these were in the last interval.

It stands in the place of the capacity that is learned from FPMs (`capacity_policy: correction`); floors, steps and
everything behind them are the throughput loop's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.models.known import Known, Unknown
from headrace.models.profile.decode import decode_table
from headrace.models.profile.prefill import prefill_table
from headrace.models.profile.tables import DecodeTable, PrefillTable, scipy_part
from headrace.models.scaling.correction import Engines, Factors, Load, Window, correction_verdicts, limited
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import DECODE, PREFILL, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.errors import ConfigError
from headrace.schemas.prediction import Prediction
from headrace.schemas.profile import DecodeProfile, PrefillProfile
from headrace.schemas.reasons import Reason
from headrace.streams.agents.traffic import Observation
from headrace.streams.agents.view import RoleView


@dataclass(slots=True)
class CorrectionLoop:
    """Remembers the profiles and the factors. Raises ConfigError where the policy is chosen and scipy not installed."""

    config: PlannerConfig
    factors: Factors = field(default_factory=Factors)
    prefill: PrefillProfile | None = None
    decode: DecodeProfile | None = None
    tables: tuple[PrefillTable, DecodeTable] | None = field(default=None, init=False)  # of both profiles

    def __post_init__(self) -> None:
        if self.config.correction:
            scipy_part("interpolate")

    def take(self, prefill: PrefillProfile | None, decode: DecodeProfile | None) -> str | None:
        """Take in what was measured of a role's engines. Returns why a profile cannot be used, or None.

        A profile that cannot be used leaves the one before it in force.
        """
        before = self.prefill, self.decode, self.tables
        self.prefill, self.decode, self.tables = prefill or self.prefill, decode or self.decode, None
        try:
            self._interpolate()
        except ConfigError as e:
            self.prefill, self.decode, self.tables = before
            return str(e)
        return None

    def _interpolate(self) -> tuple[PrefillTable, DecodeTable] | None:
        if self.tables is None and self.config.correction and self.prefill is not None and self.decode is not None:
            self.tables = prefill_table(self.prefill), decode_table(self.decode)
        return self.tables

    def run(
        self, observed: Known[Observation] | Unknown, prediction: Prediction | None, views: Mapping[Role, RoleView]
    ) -> dict[Role, Verdict]:
        """What each role should have; the factors are those of the interval that was observed.

        An interval without any request is known, and teaches nothing about speed: the factors stay, and the forecast
        sizes both roles. (The reference stops there, with whatever runs.)
        """
        try:
            tables = self._interpolate()
        except ConfigError:  # of a snapshot, or taken in under another policy: nothing to go by
            tables = None
        gpus = {role: view.gpus for role, view in views.items()}
        if tables is None or None in gpus.values():
            reason = Reason.MODEL_NOT_READY if tables is None else Reason.GPU_SHAPE_UNKNOWN
            return {role: Verdict.hold(reason) for role in views}
        engines = Engines(
            *tables,
            gpus={role: n for role, n in gpus.items() if n is not None},
            minimum={role: self.config.min_endpoint_of(role) for role in views},
            itl_sla_s=self.config.itl_ms / 1000,
        )
        window, load = _window(observed, views[DECODE]), _load(prediction)
        learn = not self.config.no_correction and window.requests != 0
        before = Factors() if self.config.no_correction else self.factors
        self.factors, verdicts = correction_verdicts(window, load, engines, before, correct=learn)
        if load is not None:
            verdicts = limited(verdicts, load, engines, self.config.correction_most_growth)
        seen = {PREFILL: self.factors.prefill, DECODE: self.factors.decode}
        return {
            role: replace(v, evidence={**v.evidence, f"{role}_correction": seen[role]}) for role, v in verdicts.items()
        }

    def to_state(self) -> dict[str, Any]:
        """JSON-able, without the profiles, which others keep: give them with :meth:`take`."""
        return {"factors": [self.factors.prefill, self.factors.decode]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.factors = Factors(*(float(factor) for factor in state["factors"]))


def _window(observed: Known[Observation] | Unknown, decode: RoleView) -> Window:
    """The interval as the correction sees it; where no frontend says how long requests take, by their first token and
    the gaps between the others."""
    if isinstance(observed, Unknown):
        return Window(1.0, None, None, None, None, None, None, None)
    o = observed.value
    duration = o.duration_s
    if duration is None and o.ttft_s is not None and o.itl_s is not None and o.osl is not None:
        duration = o.ttft_s + o.itl_s * max(0.0, o.osl - 1.0)
    workers = None if decode.inventory is None else decode.ready
    return Window(o.seconds, o.requests, o.isl, o.osl, o.ttft_s, o.itl_s, duration, workers)


def _load(p: Prediction | None) -> Load | None:
    if p is None or p.requests_per_s is None or p.isl is None or p.osl is None:
        return None
    return Load(p.requests_per_s, p.isl, p.osl)
