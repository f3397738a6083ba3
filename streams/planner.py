"""The planner of one DGD: the seam that runtimes, the simulator, replay and anyone embedding it use.

Pure: no I/O, no clock, no randomness. The same records and ticks give the same bytes.
"""

from typing import Any

import msgspec

from headrace.models.perf.engine import EngineModel
from headrace.schemas.ack import DecisionAck
from headrace.schemas.base import Record, Role
from headrace.schemas.config import PlannerConfig, planner_config
from headrace.schemas.config_notes import config_notes
from headrace.schemas.config_reference import accepted, split
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.decision import Decision
from headrace.schemas.engine_profiles import EngineProfiles
from headrace.schemas.errors import ConfigError, RecordError, StateError
from headrace.schemas.forecast_fit import ForecastFit
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.inventory import WorkerInventory
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal
from headrace.schemas.reasons import DeadLetterReason
from headrace.schemas.tick_report import TickReport
from headrace.schemas.traffic import TrafficWindow
from headrace.streams.agents.fpm import FpmObserver
from headrace.streams.agents.ledger import HIGHEST, Ledger
from headrace.streams.agents.load_series import LoadSeries
from headrace.streams.agents.memory import Memory
from headrace.streams.agents.tick import run_tick

STATE_VERSION = 3


class Planner:
    """Feed it records with :meth:`handle`, call :meth:`tick` at :attr:`next_tick_at`, publish what both return.

    Times are seconds in one time base of the caller's choice; `start` anchors the grid of ticks (0.0: whole multiples
    of the base tick since the epoch). Raises ConfigError where the configured forecaster is unknown or not installed.
    """

    def __init__(self, config: PlannerConfig, dgd: str, *, start: float = 0.0) -> None:
        self._memory = Memory.new(config, dgd, start)

    @property
    def dgd(self) -> str:
        return self._memory.dgd

    @property
    def config(self) -> PlannerConfig:
        """The configuration in force."""
        return self._memory.config

    @property
    def config_revision(self) -> int:
        """Of the configuration in force; 0 = the one it was started with."""
        return self._memory.config_revision

    @property
    def models(self) -> dict[Role, EngineModel]:
        """What has been learned about engine speed."""
        return self._memory.models

    @property
    def fpm(self) -> FpmObserver:
        """The engines as they were last heard of."""
        return self._memory.fpm

    @property
    def ledger(self) -> Ledger:
        """What has been decided, and what became of it."""
        return self._memory.ledger

    @property
    def notes(self) -> list[str]:
        """For people; they appear in the next tick report."""
        return self._memory.notes

    # -- time and ownership --------------------------------------------------------------------------------------

    @property
    def next_tick_at(self) -> float:
        """When :meth:`tick` is due next, seconds."""
        return self._memory.schedule.next_at

    @property
    def epoch(self) -> int:
        return self.ledger.epoch

    @property
    def fenced(self) -> bool:
        """A newer owner of this DGD has decided: stop, nothing of ours counts any more."""
        return self.ledger.fenced

    def begin_epoch(self) -> int:
        """Become the owner, once the log has been read up to its end. Returns the new epoch."""
        return self.ledger.begin_epoch()

    # -- forecasters -----------------------------------------------------------------------------------------------

    @property
    def forecasts(self) -> LoadSeries:
        """The forecasters of the load: which of their fits are due, and whether they make them themselves.

        As it is made, a planner makes a fit where a forecast needs it: seconds of work, and the same every time. A
        caller that must not wait calls ``forecasts.set_inline(False)``, has ``forecasts.fit_jobs()`` run elsewhere, and
        feeds what they give back as ForecastFit records.
        """
        return self._memory.forecast.series

    # -- records in ------------------------------------------------------------------------------------------------

    def handle(self, record: Record, now: float) -> list[Record]:
        """Take one input record in. Returns the dead letters that it caused.

        Repeated, late or reordered records change nothing. Raises RecordError for a record of another DGD (reason
        `unknown_dgd`), of a kind that is no input (`not_an_input`), or with numbers that leave no room to go on
        (`invalid`); the planner is unharmed by any of them.
        """
        m = self._memory
        if record.dgd != m.dgd:
            raise RecordError(
                f"record of DGD {record.dgd!r} reached the planner of {m.dgd!r}", reason=DeadLetterReason.UNKNOWN_DGD
            )
        if isinstance(record, FpmBatch):  # first and apart: there are a thousand of them for each of the others
            return list[Record](m.fpm.handle(record, now))
        self._take(record, now)
        return []

    def _take(self, record: Record, now: float) -> None:
        m = self._memory
        match record:
            case TrafficWindow():
                self._traffic(record, now)
            case WorkerInventory():
                m.inventory.handle(record, now)
            case DecisionAck():
                self._settle(record, now)
            case EngineProfiles():
                self._know(record, now)
            case Prediction():
                m.note(m.forecast.handle(record, now))
            case ForecastFit():
                m.note(m.forecast.series.take_fit(record))
            case Proposal():
                m.note(m.proposals.handle(record, now))
            case ConfigRevision():
                self._configure(record)
            case Decision():
                m.ledger.adopt(record, now)
            case TickReport():
                pass  # our own voice
            case _:
                raise RecordError(
                    f"{type(record).__name__} is no input of a planner", reason=DeadLetterReason.NOT_AN_INPUT
                )

    def _traffic(self, window: TrafficWindow, now: float) -> None:
        m = self._memory
        repeated = m.traffic.duplicates
        why = m.traffic.handle(window, now)
        m.note(why)
        if why is None and m.traffic.duplicates == repeated:
            m.queue.observe(window, now)

    def _know(self, record: EngineProfiles, now: float) -> None:
        m = self._memory
        notes = m.profiles.handle(record, m.models, now)
        for note in notes:
            m.note(note)
        if notes:
            m.note(m.take_tables())

    def _settle(self, ack: DecisionAck, now: float) -> None:
        m = self._memory
        outstanding = m.ledger.outstanding
        if outstanding is not None and m.ledger.settle(ack, now):
            said = f": {ack.message}" if ack.message else ""
            m.note(f"decision {outstanding.decision_id} was {ack.status} by {ack.executor}{said}")

    def _configure(self, record: ConfigRevision) -> None:
        """Take a newer valid configuration; learned speeds, histories and the ledger stay."""
        m = self._memory
        if record.revision <= m.config_revision:
            return
        if record.revision >= HIGHEST:
            raise RecordError(
                f"configuration revision {record.revision}: must be below 2^62, or none could follow",
                reason=DeadLetterReason.INVALID,
            )
        try:
            config = planner_config(record.config)
            if config.mode != m.config.mode:
                raise ConfigError(
                    f"mode cannot change from {m.config.mode!r} to {config.mode!r} while the planner runs: restart it"
                )
            m.configure(config)
        except ConfigError as e:
            m.note(f"configuration revision {record.revision} refused, revision {m.config_revision} stays: {e}")
        else:
            m.config_revision = record.revision
            for text in config_notes(config, record.config, accepted(split(record.config)[1], advisory=True)):
                m.note(f"configuration revision {record.revision}: {text}")

    # -- the tick --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Record]:
        """Plan at `now`, the one timestamp of everything in it.

        Returns the prediction and the own proposal (if made), the decision (if any), and the tick report, in that
        order. Before :attr:`next_tick_at` nothing is due: it returns nothing and changes nothing.
        """
        return run_tick(self._memory, now)

    # -- state -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything that :meth:`restore` needs, as JSON. Restoring gives a planner that behaves the same."""
        return msgspec.json.encode({"version": STATE_VERSION, **self._memory.to_state()})

    @classmethod
    def restore(cls, blob: bytes, config: PlannerConfig | None = None) -> "Planner":
        """A planner from a snapshot; with `config`, under that configuration instead of the one it was taken with.

        A configuration revision that had come over the log stays in force, unless `config` has another mode.
        Raises StateError when the bytes are not a snapshot of this version.
        """
        try:
            state: dict[str, Any] = msgspec.json.decode(blob)
            if state["version"] != STATE_VERSION:
                raise StateError(f"snapshot version {state['version']}: this version reads {STATE_VERSION}")
            planner = cls.__new__(cls)
            planner._memory = Memory.from_state(state, config)
        except (msgspec.MsgspecError, ConfigError, KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
            raise StateError(f"planner snapshot of {len(blob)} bytes: {type(e).__name__}: {e}") from e
        return planner
