"""The stream table: names, records, keys and retention in one place. `headrace streams list` prints it."""

from dataclasses import dataclass
from typing import Literal

from headrace.schemas.ack import DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.decision import Decision
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


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream. The key of every record is its DGD; order is guaranteed per DGD and nowhere else.

    `keep_s` and `keep_bytes` bound the stream (the oldest go first); `last_only` keeps one record per DGD for ever.
    `last_per_key` is true where a reader must find the newest record of a DGD however old: such streams have no age limit.
    """

    name: str
    record: type[Record]
    what: str
    written_by: str
    read_by: str
    codec: Literal["json", "msgpack"] = "json"
    keep_s: float | None = 7 * DAY
    keep_bytes: int = 256 * MiB
    last_only: bool = False
    in_memory: bool = False  # may be lost with the broker

    @property
    def kept(self) -> str:
        if self.last_only:
            return "last per DGD"
        if self.keep_s is None:
            return f"{self.keep_bytes // MiB} MiB"
        return f"{self.keep_s / 60:g} min" if self.keep_s < DAY else f"{self.keep_s / DAY:g} d"


FPM = Stream("fpm", FpmBatch, "engine iterations, batched", "event-plane source, simulator", "planner",
             codec="msgpack", keep_s=10 * MINUTE, in_memory=True)
TRAFFIC = Stream("traffic", TrafficWindow, "arrivals, lengths, latencies per window", "frontend source", "planner, taps")
INVENTORY = Stream("inventory", WorkerInventory, "workers per role and what they are", "sources, executors", "planner",
                   last_only=True)
CONFIG = Stream("config", ConfigRevision, "planner configuration with a revision", "operator", "planner", last_only=True)
PREDICTIONS = Stream("predictions", Prediction, "load expected", "planner, outside forecasters", "planner, taps")
PROPOSALS = Stream("proposals", Proposal, "SET, AT_LEAST, AT_MOST, REJECT", "planner, outside proposers", "planner, taps")
DECISIONS = Stream("decisions", Decision, "replicas per role, with epoch and id", "planner", "executors, taps",
                   keep_s=None)
ACKS = Stream("acks", DecisionAck, "what became of a decision", "executors", "planner, taps", keep_s=None)
TICKS = Stream("ticks", TickReport, "what a tick saw and why it did what it did", "planner", "dashboard, reports",
               keep_s=3 * DAY)
DEADLETTERS = Stream("deadletters", DeadLetter, "bad bytes, their origin, the reason", "every reader", "operator",
                     keep_bytes=64 * MiB)
STATE = Stream("state", PlannerState, "planner snapshot", "planner", "planner", last_only=True)

STREAMS: dict[str, Stream] = {
    s.name: s
    for s in (FPM, TRAFFIC, INVENTORY, CONFIG, PREDICTIONS, PROPOSALS, DECISIONS, ACKS, TICKS, DEADLETTERS, STATE)
}
BY_RECORD: dict[type[Record], Stream] = {s.record: s for s in STREAMS.values()}


def stream_of(record: Record) -> Stream:
    """The stream that a record belongs on."""
    return BY_RECORD[type(record)]
