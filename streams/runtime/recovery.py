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
from headrace.schemas.reasons import Outcome
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import ACKS, DECISIONS, STATE, TICKS, Stream
from headrace.schemas.tick_report import TickReport
from headrace.streams.agents.ledger import HIGHEST
from headrace.streams.planner import Planner
from headrace.streams.runtime.clock import Clock

READ_S = 5.0  # patience with messages that the bus says are there
LONGEST_NOTE = 400  # characters


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


async def recover(bus: Bus, config: PlannerConfig, dgd: str, clock: Clock) -> Recovered:
    """Read the snapshot, the newest decision and the acks of a DGD. Raises BusError.

    A lost or corrupt snapshot is no error: the planner starts anew, reads all that the log keeps, and says so.
    """
    last_state = await bus.last(STATE, dgd)
    last_decision = await bus.last(DECISIONS, dgd)
    notes: list[str] = []
    planner, positions = _from_snapshot(last_state, config, dgd, notes)
    logged = await _newest_decision(bus, dgd, last_decision, notes)
    if logged is not None and planner.ledger.adopt(logged, clock.now()):
        await _settle_from_log(bus, planner, clock, notes)
    await _know_epochs(bus, planner)
    if last_state is None and planner.ledger.highest_epoch:
        notes.append(
            f"there is no snapshot, and the log knows epoch {planner.ledger.highest_epoch}: rebuilt from the log"
        )
    return Recovered(
        planner,
        positions,
        state_position=0 if last_state is None else last_state.position,
        decision_position=0 if last_decision is None else last_decision.position,
        unpublished=_unpublished(planner, logged),
        notes=[note[:LONGEST_NOTE] for note in notes],
    )


def _from_snapshot(
    message: Message | None, config: PlannerConfig, dgd: str, notes: list[str]
) -> tuple[Planner, dict[str, int]]:
    if message is None:
        return Planner(config, dgd), {}
    try:
        state = decode(STATE, message.data)
        assert isinstance(state, PlannerState)
        planner = Planner.restore(_snapshot(state), config)
        if not state.dgd == planner.dgd == dgd:
            raise StateError(f"it is of {planner.dgd}")
    except (RecordError, StateError) as e:
        notes.append(f"the snapshot at position {message.position} is unusable ({e}): rebuilt from the log")
        return Planner(config, dgd), {}
    return planner, dict(state.positions)


def _snapshot(state: PlannerState) -> bytes:
    if not state.state:
        raise StateError("it was too large for the bus")
    if zlib.crc32(state.state) != state.crc32:
        raise StateError("its checksum does not match")
    try:
        return zlib.decompress(state.state)
    except zlib.error as e:
        raise StateError(str(e)) from e


async def _newest_decision(bus: Bus, dgd: str, last: Message | None, notes: list[str]) -> Decision | None:
    """The newest decision on the log. The last message is it, unless a stranger has written there."""
    if last is None:
        return None
    decision = _decision(last, dgd)
    if decision is not None:
        return decision
    notes.append(f"{DECISIONS.name} at position {last.position} is no decision that a planner could have made")
    found = [_decision(message, dgd) for message in await _read_to(bus, DECISIONS, last, notes)]
    return max((d for d in found if d is not None), key=_place, default=None)


def _decision(message: Message, dgd: str) -> Decision | None:
    try:
        record = decode(DECISIONS, message.data)
    except RecordError:
        return None
    assert isinstance(record, Decision)
    usable = record.dgd == dgd and max(record.epoch, record.decision_id) < HIGHEST
    return record if usable else None


def _place(decision: Decision) -> tuple[int, int]:
    return decision.epoch, decision.decision_id


def _unpublished(planner: Planner, logged: Decision | None) -> Decision | None:
    """The snapshot's newest decision, if the log lacks it. One that was settled has been there, and is gone by age."""
    newest = planner.ledger.newest
    settled = planner.ledger.outcome not in (None, Outcome.OUTSTANDING)
    if newest is None or settled or (logged is not None and _place(newest) <= _place(logged)):
        return None
    return newest


async def _settle_from_log(bus: Bus, planner: Planner, clock: Clock, notes: list[str]) -> None:
    """Acks that came before the snapshot's end may settle the decision just adopted."""
    last = await bus.last(ACKS, planner.dgd)
    for message in [] if last is None else await _read_to(bus, ACKS, last, notes):
        ack = _record(ACKS, message)
        if isinstance(ack, DecisionAck):
            planner.ledger.settle(ack, clock.of_wall(message.stored_at))


async def _know_epochs(bus: Bus, planner: Planner) -> None:
    """Former owners that decided nothing, or whose decisions are lost, have spoken in an epoch all the same."""
    ledger = planner.ledger
    for stream in (TICKS, ACKS):
        last = await bus.last(stream, planner.dgd)
        record = None if last is None else _record(stream, last)
        if isinstance(record, TickReport | DecisionAck) and record.epoch < HIGHEST:
            ledger.highest_epoch = max(ledger.highest_epoch, record.epoch)


async def _read_to(bus: Bus, stream: Stream, last: Message, notes: list[str]) -> list[Message]:
    """All that is kept of a key, up to its last message."""
    found: list[Message] = []
    reader = await bus.read(stream, key=last.key, after=0)
    try:
        while not found or found[-1].position < last.position:
            messages = await reader.next(timeout=READ_S)
            if not messages:
                notes.append(f"{stream.name} could not be read to its end at start")
                break
            found += messages
    finally:
        await reader.close()
    return found


def _record(stream: Stream, message: Message) -> Record | None:
    try:
        return decode(stream, message.data)
    except RecordError:
        return None


def snapshot_record(planner: Planner, positions: dict[str, int], now: float) -> PlannerState:
    """The planner's state with the positions that it covers, taken in one step."""
    blob = zlib.compress(planner.snapshot(), 1)  # a tenth of it, in little time
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
