"""What the reference remembers between two ticks, besides its schedule."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.models.reference.budget import Band, clamp_pair, clamp_single
from headrace.models.reference.forecast import clamp_accept
from headrace.models.reference.perf import PerfModel
from headrace.models.reference.settings import Engine, Settings
from headrace.schemas.base import AGG, DECODE, Role


@dataclass(slots=True)
class State:
    settings: Settings
    engines: dict[Role, Engine] = field(default_factory=dict)
    models: dict[Role, PerfModel] = field(init=False)
    floors: dict[Role, int] = field(init=False)
    kv_hit_rate: float | None = None
    accept_length: float | None = None

    def __post_init__(self) -> None:
        self.models = {role: PerfModel(role, self.settings.learning) for role in self.settings.roles}
        self.floors = dict.fromkeys(self.settings.roles, 1)
        self.set_engines(self.engines)

    def set_engines(self, engines: Mapping[Role, Engine]) -> None:
        """Engines whose limits have changed are learned anew."""
        self.engines = dict(engines)
        for role, model in self.models.items():
            engine = engines.get(role)
            model.set_limits(None if engine is None else engine.limits)

    def engine(self, role: Role) -> Engine:
        return self.engines.get(role, Engine())

    def note_rates(self, kv_hit_rate: float | None, accept_length: float | None) -> None:
        """What is unknown leaves what was last known."""
        if kv_hit_rate is not None and not math.isnan(kv_hit_rate):
            self.kv_hit_rate = kv_hit_rate
        if accept_length is not None and math.isfinite(accept_length):
            self.accept_length = accept_length

    @property
    def nextn(self) -> int:
        """Tokens that are guessed a step: as the decoding engines say, else as configured."""
        said = self.engine(AGG if self.settings.mode == "agg" else DECODE).speculative_nextn
        return said if said else self.settings.speculative_nextn

    @property
    def accepted(self) -> float:
        return clamp_accept(self.accept_length, self.nextn)

    # -- the GPU budget --------------------------------------------------------------------------------------------

    @property
    def band(self) -> Band:
        s = self.settings
        return Band(s.min_gpu_budget, s.max_gpu_budget, s.min_endpoint)

    def within_budget(self, targets: Mapping[Role, int]) -> dict[Role, int]:
        """Targets for all roles; as they are where the GPUs of some replica are unknown."""
        gpus = [self.engine(role).num_gpu for role in targets]
        known = [g for g in gpus if g is not None]
        if len(known) < len(gpus):
            return dict(targets)
        if len(targets) == 1:
            ((role, replicas),) = targets.items()
            return {role: clamp_single(max(replicas, self.settings.min_endpoint), known[0], self.band)}
        (p, d) = targets
        found = clamp_pair((targets[p], targets[d]), (known[0], known[1]), self.band)
        return dict(zip((p, d), found, strict=True))
