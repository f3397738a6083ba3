"""Recovery: a planner from its snapshot and the tail of the log; the log wins where they differ."""

import zlib
from dataclasses import dataclass, field

import msgspec

from headrace.connectors.bus.base import Bus, Message
from headrace.schemas.ack import DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.codec import decode
from headrace.schemas.config import PlannerConfig
from headrace.schemas.decision import Decision
from headrace.schemas.errors import RecordError, StateError
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import ACKS, DECISIONS, STATE, Stream
from headrace.streams.planner import Planner


@dataclass(slots=True)
class Recovered:
    """A planner as of its snapshot, and where to read on. `unpublished` is a decision that the snapshot holds and the
    log does not: the former owner died between writing the two, and it must be published first."""

    planner: Planner
    positions: dict[str, int]
    state_position: int
    decision_position: int
    unpublished: Decision | None = None
    notes: list[str] = field(default_factory=list)


async def recover(bus: Bus, config: PlannerConfig, dgd: str, start: float) -> Recovered:
    """Read the snapshot, the last decision and the acks of a DGD.

    A lost or corrupt snapshot is no error: the planner starts anew, reads all that the log keeps, and says so.
    """
    last_state = await bus.last(STATE, dgd)
    planner, positions, notes = _from_snapshot(last_state, config, dgd, start)
    last_decision = await bus.last(DECISIONS, dgd)
    if last_decision is not None:
        decision = _decode(DECISIONS, last_decision, notes)
        if decision is not None and planner.ledger.adopt(decision):
            await _settle_from_log(bus, planner, dgd, notes)
    logged = -1 if last_decision is None else _logged_id(last_decision)
    newest = planner.ledger.newest
    return Recovered(
        planner,
        positions,
        state_position=0 if last_state is None else last_state.position,
        decision_position=0 if last_decision is None else last_decision.position,
        unpublished=newest if newest is not None and newest.decision_id > logged else None,
        notes=notes,
    )


def _from_snapshot(
    message: Message | None, config: PlannerConfig, dgd: str, start: float
) -> tuple[Planner, dict[str, int], list[str]]:
    if message is None:
        return Planner(config, dgd, start=start), {}, []
    try:
        state = decode(STATE, message.data)
        assert isinstance(state, PlannerState)
        if zlib.crc32(state.state) != state.crc32:
            raise StateError("its checksum does not match")
        return Planner.restore(state.state, config), dict(state.positions), []
    except (RecordError, StateError) as e:
        fresh = Planner(config, dgd, start=start)
        return fresh, {}, [f"the snapshot at position {message.position} is unusable ({e}): rebuilt from the log"]


def _decode(stream: Stream, message: Message, notes: list[str]) -> Decision | None:
    try:
        record = decode(stream, message.data)
    except RecordError as e:
        notes.append(f"{stream.name} at position {message.position} is unreadable ({e})")
        return None
    return record if isinstance(record, Decision) else None


def _logged_id(message: Message) -> int:
    try:
        record = decode(DECISIONS, message.data)
    except RecordError:
        return -1
    return record.decision_id if isinstance(record, Decision) else -1


async def _settle_from_log(bus: Bus, planner: Planner, dgd: str, notes: list[str]) -> None:
    """Acks that the snapshot did not see may settle the decision just adopted."""
    reader = await bus.read(ACKS, key=dgd, after=0)
    try:
        last = await bus.last(ACKS, dgd)
        while last is not None:
            messages = await reader.next(timeout=5.0)
            if not messages:
                notes.append(
                    "the acks on the log could not be read to their end: the decision stays outstanding until one comes"
                )
                return
            for message in messages:
                ack = _ack(message)
                if ack is not None:
                    planner.ledger.settle(ack, ack.at)
            if messages[-1].position >= last.position:
                return
    finally:
        await reader.close()


def _ack(message: Message) -> DecisionAck | None:
    try:
        record = decode(ACKS, message.data)
    except RecordError:
        return None
    return record if isinstance(record, DecisionAck) else None


def snapshot_record(planner: Planner, positions: dict[str, int], now: float) -> PlannerState:
    """The planner's state with the positions that it covers, taken in one step."""
    blob = planner.snapshot()
    return PlannerState(
        dgd=planner.dgd,
        epoch=planner.epoch,
        taken_at=now,
        positions=dict(positions),
        crc32=zlib.crc32(blob),
        state=blob,
    )


def with_positions(record: Record, positions: dict[str, int]) -> Record:
    """A tick report that says up to where each stream had been read."""
    return msgspec.structs.replace(record, positions=dict(positions))
