"""Everything that the planner of one DGD remembers between two records, and how a new configuration changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.models.perf.engine import EngineModel
from headrace.schemas.base import DECODE, PREFILL, Role
from headrace.schemas.config import PlannerConfig, planner_config
from headrace.schemas.prediction import Prediction
from headrace.streams.agents.correction import CorrectionLoop
from headrace.streams.agents.forecast import ForecastAgent
from headrace.streams.agents.fpm import FpmObserver
from headrace.streams.agents.inventory import InventoryObserver
from headrace.streams.agents.ledger import Ledger
from headrace.streams.agents.load import LoadLoop
from headrace.streams.agents.profiles import Profiles
from headrace.streams.agents.proposals import OutsideProposals
from headrace.streams.agents.queue_aware import QueueAwareLoop
from headrace.streams.agents.schedule import Schedule
from headrace.streams.agents.shadow import Shadow
from headrace.streams.agents.throughput import ThroughputLoop
from headrace.streams.agents.traffic import TrafficObserver

MAX_NOTES = 32
LONGEST_NOTE = 500  # characters; part of it may be foreign text


@dataclass(slots=True)
class Memory:
    """The agents of one DGD under one configuration. Make one with :meth:`new` or :meth:`from_state`."""

    dgd: str
    config: PlannerConfig
    schedule: Schedule
    models: dict[Role, EngineModel]
    fpm: FpmObserver
    traffic: TrafficObserver
    inventory: InventoryObserver
    forecast: ForecastAgent
    throughput: ThroughputLoop
    correction: CorrectionLoop
    load: LoadLoop
    queue: QueueAwareLoop
    ledger: Ledger
    proposals: OutsideProposals
    profiles: Profiles = field(default_factory=Profiles)
    shadow: Shadow | None = None  # of the reference planner, where the configuration asks for one
    config_revision: int = 0
    prediction: Prediction | None = None  # the one planned with
    notes: list[str] = field(default_factory=list)  # for the next report

    @classmethod
    def new(cls, config: PlannerConfig, dgd: str, start: float) -> "Memory":
        """Nothing remembered. Raises ConfigError where the forecaster is unknown or its extra missing."""
        models = {role: _model(config) for role in config.roles}
        skew = config.max_clock_skew_seconds
        return cls(
            dgd=dgd,
            config=config,
            schedule=Schedule.of(config, start),
            models=models,
            fpm=FpmObserver(models, config.fpm_stale_after_seconds, skew),
            traffic=TrafficObserver(skew),
            inventory=InventoryObserver(config.roles, config.inventory_stale_after_seconds, skew),
            forecast=ForecastAgent(config),
            throughput=ThroughputLoop(config),
            correction=CorrectionLoop(config),
            load=LoadLoop(config),
            queue=QueueAwareLoop(config),
            ledger=Ledger(dgd, config.ack_timeout_seconds),
            proposals=OutsideProposals(config.roles),
            shadow=Shadow.of(config, start),
        )

    def note(self, text: str | None) -> None:
        if text is not None and len(self.notes) < MAX_NOTES:
            self.notes.append(text if len(text) <= LONGEST_NOTE else text[: LONGEST_NOTE - 1] + "…")

    def configure(self, config: PlannerConfig) -> None:
        """Go on under another configuration of the same mode; what was learned and decided stays.

        Raises ConfigError, with nothing changed, where the forecaster is unknown or its extra missing.
        """
        assert config.mode == self.config.mode
        CorrectionLoop(config)  # its extra may be missing
        forecast = ForecastAgent(config)
        forecast.load_state(self.forecast.to_state())
        shadow = self.shadow if config == self.config else Shadow.of(config, self.schedule.anchor)
        self._relearn(config)
        self.config, self.forecast, self.shadow = config, forecast, shadow
        self.schedule = self.schedule.reconfigured(config)
        self.throughput.config = self.load.config = self.correction.config = config
        self.queue.configure(config)
        self.ledger.ack_timeout_s = config.ack_timeout_seconds
        self.fpm.stale_after_s = config.fpm_stale_after_seconds
        self.inventory.stale_after_s = config.inventory_stale_after_seconds
        self.fpm.max_skew_s = self.inventory.max_skew_s = self.traffic.max_skew_s = config.max_clock_skew_seconds

    def _relearn(self, config: PlannerConfig) -> None:
        """Carry what the models know over to other settings of theirs; cells of another size cannot be."""
        self.fpm.learn()
        if config.fpm_sample_bucket_size != self.config.fpm_sample_bucket_size:
            self.note("fpm_sample_bucket_size has changed: engine speeds are learned anew")
            for role in self.models:
                self.models[role] = _model(config)
                self.profiles.teach(role, self.models[role])
        elif config.load_min_observations != self.config.load_min_observations:
            for role, model in self.models.items():
                state = model.to_state() | {"min_observations": config.load_min_observations}
                self.models[role] = EngineModel.from_state(state)

    def take_tables(self) -> str | None:
        """Give the correction what is known of engines. Returns why a profile cannot be used, or None."""
        return self.correction.take(self.profiles.of(PREFILL).prefill, self.profiles.of(DECODE).decode)

    def to_state(self) -> dict[str, Any]:
        """JSON-able."""
        self.fpm.learn()
        return {
            "dgd": self.dgd,
            "config": msgspec.to_builtins(self.config),
            "config_revision": self.config_revision,
            "schedule": self.schedule.to_state(),
            "models": {role: model.to_state() for role, model in self.models.items()},
            "fpm": self.fpm.to_state(),
            "traffic": self.traffic.to_state(),
            "inventory": self.inventory.to_state(),
            "forecast": self.forecast.to_state(),
            "throughput": self.throughput.to_state(),
            "correction": self.correction.to_state(),
            "calm": self.load.calm,
            "queue": self.queue.to_state(),
            "ledger": self.ledger.to_state(),
            "proposals": self.proposals.to_state(),
            "profiles": self.profiles.to_state(),
            "shadow": None if self.shadow is None else self.shadow.to_state(),
            "prediction": msgspec.to_builtins(self.prediction),
            "notes": self.notes,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], config: PlannerConfig | None = None) -> "Memory":
        """What `to_state` described; under `config` if that is given.

        A revision from the log stays in force over `config`, which is what the process was started with: else a restart
        would undo what an operator has published. Only another mode, which no revision can bring, overrules it.
        Raises ConfigError, StateError, KeyError, TypeError, ValueError or msgspec's errors where it is no such state.
        """
        found = planner_config(state["config"]) if config is None or state["config_revision"] else config
        memory = cls.new(found, state["dgd"], 0.0)
        if config is not None and config.mode != found.mode:
            memory = cls.new(config, state["dgd"], 0.0)
        memory._load(state)
        if config is not None and memory.config != config:
            memory.note(
                f"configuration revision {memory.config_revision} is in force, not the one that was given at start"
            )
        return memory

    def _load(self, state: Mapping[str, Any]) -> None:
        self.config_revision = state["config_revision"]
        self.schedule = Schedule.from_state(state["schedule"])
        wanted = Schedule.of(self.config, self.schedule.anchor)
        if (wanted.base_s, wanted.intervals) != (self.schedule.base_s, self.schedule.intervals):
            self.schedule = self.schedule.reconfigured(self.config)
        self.shadow = Shadow.of(self.config, self.schedule.anchor)
        if self.shadow is not None and state.get("shadow") and state["config"] == msgspec.to_builtins(self.config):
            self.shadow.load_state(state["shadow"])
        for role in self.models.keys() & state["models"].keys():
            self.models[role] = EngineModel.from_state(state["models"][role])
        self.fpm.load_state(state["fpm"])
        self.traffic.load_state(state["traffic"])
        self.inventory.load_state(state["inventory"])
        self.forecast.load_state(state["forecast"])
        self.throughput.load_state(state["throughput"])
        if "correction" in state:  # not in older snapshots
            self.correction.load_state(state["correction"])
        self.load.calm = {role: int(runs) for role, runs in state["calm"].items()}
        self.queue.load_state(state["queue"])
        self.ledger.load_state(state["ledger"])
        self.proposals.load_state(state["proposals"])
        if "profiles" in state:  # not in older snapshots
            self.profiles.load_state(state["profiles"])
            self.note(self.take_tables())
        self.prediction = msgspec.convert(state["prediction"], Prediction | None)
        self.notes = list(state["notes"])


def _model(config: PlannerConfig) -> EngineModel:
    return EngineModel(min_observations=config.load_min_observations, buckets=config.fpm_sample_bucket_size)
