"""The stream table: names, records, keys and retention in one place. `headrace streams list` prints it."""

from dataclasses import dataclass
from typing import Literal

from headrace.schemas.ack import DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.decision import Decision
from headrace.schemas.engine_profiles import EngineProfiles
from headrace.schemas.forecast_fit import ForecastFit
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.inventory import WorkerInventory
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal
from headrace.schemas.state import PlannerState
from headrace.schemas.tick_report import TickReport
from headrace.schemas.traffic import TrafficWindow

MINUTE = 60
DAY = 86_400
MiB = 1024 * 1024

AT_LEAST_ONCE = "at least once"
AT_MOST_ONCE = "at most once from the engines, then at least once"
ORDERING = "per DGD"
KEY = "the DGD, `namespace/name`"


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream. The key of every record is its DGD; order is guaranteed per DGD and nowhere else.

    `keep_s` and `keep_bytes` bound the stream (the oldest go first); `last_only` keeps one record per DGD for ever.
    Streams where a reader must find the newest record of a DGD however old have no age limit.
    """

    name: str
    record: type[Record]
    what: str
    written_by: str
    read_by: str
    may_write: str  # whom the bus's permissions should let in
    codec: Literal["json", "msgpack"] = "json"
    keep_s: float | None = 7 * DAY
    keep_bytes: int = 256 * MiB
    last_only: bool = False
    in_memory: bool = False  # may be lost with the broker
    delivery: str = AT_LEAST_ONCE

    @property
    def kept(self) -> str:
        if self.last_only:
            return "last per DGD"
        if self.keep_s is None:
            return f"{self.keep_bytes // MiB} MiB"
        return f"{self.keep_s / 60:g} min" if self.keep_s < DAY else f"{self.keep_s / DAY:g} d"


FPM = Stream(
    "fpm",
    FpmBatch,
    what="engine iterations, batched",
    written_by="event-plane source, simulator",
    read_by="planner",
    may_write="sources",
    codec="msgpack",
    keep_s=10 * MINUTE,
    delivery=AT_MOST_ONCE,
)
TRAFFIC = Stream(
    "traffic",
    TrafficWindow,
    what="arrivals, lengths, latencies per window",
    written_by="frontend source",
    read_by="planner, taps",
    may_write="sources",
)
INVENTORY = Stream(
    "inventory",
    WorkerInventory,
    what="workers per role and what they are",
    written_by="sources, executors",
    read_by="planner",
    may_write="sources and executors",
    last_only=True,
)
CONFIG = Stream(
    "config",
    ConfigRevision,
    what="planner configuration with a revision",
    written_by="operator",
    read_by="planner",
    may_write="operators",
    last_only=True,
)
PROFILES = Stream(
    "profiles",
    EngineProfiles,
    what="what is known of engines before they serve",
    written_by="planner at its start",
    read_by="planner, taps",
    may_write="the planner, and whoever measures engines for you",
    last_only=True,
)
PREDICTIONS = Stream(
    "predictions",
    Prediction,
    what="load expected",
    written_by="planner, outside forecasters",
    read_by="planner, taps",
    may_write="the planner, and the forecasters that you trust",
)
FITS = Stream(
    "fits",
    ForecastFit,
    what="parameters of forecasters",
    written_by="planner",
    read_by="planner",
    may_write="the planner that owns the DGD",
)
PROPOSALS = Stream(
    "proposals",
    Proposal,
    what="SET, AT_LEAST, AT_MOST, REJECT",
    written_by="planner, outside proposers",
    read_by="planner, taps",
    may_write="the planner, and the proposers that you trust",
)
DECISIONS = Stream(
    "decisions",
    Decision,
    what="replicas per role, with epoch and id",
    written_by="planner",
    read_by="executors, taps",
    may_write="the planner that owns the DGD, nobody else",
    keep_s=None,
)
ACKS = Stream(
    "acks",
    DecisionAck,
    what="what became of a decision",
    written_by="executors",
    read_by="planner, taps",
    may_write="executors",
    keep_s=None,
)
TICKS = Stream(
    "ticks",
    TickReport,
    what="what a tick saw and why it did what it did",
    written_by="planner",
    read_by="dashboard, reports",
    may_write="the planner",
    keep_s=3 * DAY,
)
DEADLETTERS = Stream(
    "deadletters",
    DeadLetter,
    what="bad bytes, their origin, the reason",
    written_by="every reader",
    read_by="operator",
    may_write="every Headrace process",
    keep_bytes=64 * MiB,
)
STATE = Stream(
    "state",
    PlannerState,
    what="planner snapshot",
    written_by="planner",
    read_by="planner",
    may_write="the planner that owns the DGD",
    last_only=True,
)

STREAMS: dict[str, Stream] = {
    s.name: s
    for s in (
        FPM,
        TRAFFIC,
        INVENTORY,
        CONFIG,
        PROFILES,
        PREDICTIONS,
        FITS,
        PROPOSALS,
        DECISIONS,
        ACKS,
        TICKS,
        DEADLETTERS,
        STATE,
    )
}
BY_RECORD: dict[type[Record], Stream] = {s.record: s for s in STREAMS.values()}


def stream_of(record: Record) -> Stream:
    """The stream that a record belongs on."""
    return BY_RECORD[type(record)]
