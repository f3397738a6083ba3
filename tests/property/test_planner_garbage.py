"""Whatever comes over the bus, a planner takes it or refuses it, and what is right is decided as without it."""

from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from moves import Move, Player, histories
from msgspec.structs import replace
from world import DGD, fpm, taught

from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.codec import decode, encode
from headrace.schemas.config import FIELDS, planner_config
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.errors import RecordError
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.forecast_fit import ForecastFit
from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.inventory import Capabilities, RoleInventory, WorkerInventory
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal, ProposalKind
from headrace.schemas.streams import stream_of
from headrace.schemas.tick_report import TickReport
from headrace.schemas.traffic import Distribution, TrafficWindow
from headrace.streams.planner import Planner

ROLES = ("prefill", "decode")
CONFIG = {
    "optimization_target": "sla",
    "enable_load_scaling": True,
    "load_predictor": "constant",
    "throughput_adjustment_interval_seconds": 20,
    "max_gpu_budget": 50,
}

counts = st.integers(0, 2**40) | st.integers(0, 20)
serials = st.integers(0, 2**63 - 1) | st.integers(0, 9)
unsigned = st.integers(0, 2**64 - 1) | st.integers(0, 9)
amounts = st.floats(0.0, 1e15) | st.floats(0.0, 100.0)
seconds = st.floats(0.0, 1e12) | st.floats(0.0, 300.0)
names = st.sampled_from(["a", "b", "headrace.load", "ß" * 100]) | st.text(min_size=1, max_size=40)
roles = st.sampled_from([*ROLES, "agg", ""]) | st.text(max_size=10)
common = {"dgd": st.just(DGD)}

works = st.builds(ScheduledRequests, counts, counts, amounts, counts, counts, counts, amounts)
queues = st.builds(QueuedRequests, counts, counts, amounts, counts, counts, amounts)
ids = st.sampled_from(["1", "2", "11", ""]) | st.text(max_size=300)
fpms = st.builds(Fpm, st.sampled_from([1, 1, 1, 2]), ids, unsigned, unsigned, seconds, works, queues)
payloads = (
    fpms.map(encode_fpm)
    | st.binary(max_size=60)
    | st.dictionaries(
        st.text(max_size=8) | st.sampled_from(list(Fpm.__struct_fields__)), st.integers() | st.floats()
    ).map(lambda d: msgspec.msgpack.encode({k: v if isinstance(v, float) else v % 2**64 for k, v in d.items()}))
)
batches = st.builds(
    FpmBatch,
    role=roles,
    source=names,
    received_at=seconds,
    items=st.lists(st.builds(FpmItem, seconds, unsigned, unsigned, payloads), max_size=12),
    **common,
)
distributions = st.none() | st.builds(Distribution, count=counts, mean=st.none() | amounts)
fractions = st.none() | st.floats(0.0, 1.0)


@st.composite
def windows(draw: st.DrawFn) -> TrafficWindow:
    start, end = sorted((draw(seconds), draw(seconds)))
    return TrafficWindow(
        dgd=DGD,
        window_id=draw(names),
        source=draw(names),
        start=start,
        end=end,
        requests=draw(st.none() | counts),
        isl=draw(distributions),
        osl=draw(distributions),
        ttft_s=draw(distributions),
        kv_hit_rate=draw(fractions),
        accept_length=draw(st.none() | st.floats(1.0, 1e3)),
        unknown=draw(st.dictionaries(names, names, max_size=3)),
    )


limits = st.none() | counts
capabilities = st.none() | st.builds(Capabilities, **dict.fromkeys(Capabilities.__struct_fields__, limits))
sightings = st.builds(
    RoleInventory,
    **dict.fromkeys(("ready", "starting", "draining", "unschedulable"), counts),
    desired=limits,
    gpus_per_replica=limits,
    capabilities=capabilities,
    workers=st.none() | st.lists(ids, max_size=5),
)
inventories = st.builds(
    WorkerInventory, source=names, observed_at=seconds, roles=st.dictionaries(roles, sightings, max_size=4), **common
)
opinions = st.none() | amounts
predictions = st.builds(
    Prediction,
    prediction_id=names,
    source=names,
    made_at=seconds,
    expires_at=seconds,
    requests_per_s=opinions,
    isl=opinions,
    osl=opinions,
    kv_hit_rate=fractions,
    accept_length=opinions,
    priority=st.integers(-(2**31), 2**31 - 1),
    quantiles=st.dictionaries(names, amounts, max_size=3),
    **common,
)
proposals = st.builds(
    Proposal,
    proposal_id=names,
    source=names,
    kind=st.sampled_from(ProposalKind),
    issued_at=seconds,
    expires_at=seconds,
    targets=st.dictionaries(roles, st.integers(0, 100_000), max_size=4),
    priority=st.integers(-(2**31), 2**31 - 1),
    reason=st.text(max_size=500),
    **common,
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
revisions = st.builds(
    ConfigRevision,
    revision=serials,
    at=seconds,
    config=st.dictionaries(
        st.sampled_from(FIELDS) | names, json_values | st.sampled_from(["sla", "kalman", 5, True]), max_size=6
    ),
    **common,
)
fits = st.builds(
    ForecastFit,
    fit_id=names,
    series=st.sampled_from(["rate", "isl"]) | names,
    kind=st.sampled_from(["arima", "prophet"]) | names,
    options=st.sampled_from(["constant, 20 s, window 50"]) | names,
    at=serials,
    newest=amounts,
    values=st.none() | st.dictionaries(st.sampled_from(["order", "params", "path"]) | names, json_values, max_size=3),
    made_at=seconds,
    failure=st.text(max_size=300),
    **common,
)
acks = st.builds(
    DecisionAck,
    epoch=serials,
    decision_id=serials,
    status=st.sampled_from(AckStatus),
    executor=names,
    at=seconds,
    counts=st.dictionaries(roles, counts, max_size=2),
    message=st.text(max_size=300),
    **common,
)
decisions = st.builds(
    Decision,
    epoch=serials,
    decision_id=serials,
    issued_at=seconds,
    expires_at=seconds,
    targets=st.dictionaries(roles, counts, max_size=3),
    previous=st.just({}),
    reasons=st.just({}),
    causes=st.builds(Causes, tick=serials),
    advisory=st.booleans(),
    **common,
)
examples = st.sampled_from([*EXAMPLES.values(), *(replace(record, dgd=DGD) for record in EXAMPLES.values())])
anything = st.one_of(
    batches, windows(), inventories, predictions, fits, proposals, revisions, acks, decisions, examples
)


def planner(config: dict[str, Any]) -> Planner:
    made = Planner(planner_config(config), DGD, start=100.0)
    made.begin_epoch()
    for role in made.models:
        made.models[role] = taught(role)
    return made


def test_the_garbage_tried_here_is_what_a_bus_would_let_through() -> None:
    for strategy in (batches, windows(), inventories, predictions, fits, proposals, acks, decisions):

        @given(strategy)
        @settings(max_examples=20)
        def whole(record: Record) -> None:
            assert decode(stream_of(record), encode(record)) == record

        whole()


@given(st.lists(st.tuples(anything, seconds), max_size=12), st.integers(0, 3))
@settings(max_examples=60)
def test_any_record_at_any_time_is_taken_or_refused(given_records: list[tuple[Record, float]], ticks: int) -> None:
    made = planner(CONFIG)
    for record, at in given_records:
        with suppress(RecordError):
            for letter in made.handle(record, at):
                assert decode(stream_of(letter), encode(letter)) == letter
    for _ in range(ticks):
        for record in made.tick(made.next_tick_at):
            assert decode(stream_of(record), encode(record)) == record
        made = Planner.restore(made.snapshot())


@given(st.lists(st.tuples(anything, seconds), max_size=8))
@settings(max_examples=80)
def test_a_refused_record_leaves_no_trace(given_records: list[tuple[Record, float]]) -> None:
    made = planner(CONFIG)
    for record, at in given_records:
        before = made.snapshot()
        try:
            made.handle(record, at)
        except RecordError:
            assert made.snapshot() == before


# What can be told to be wrong has no effect on what is right.


@st.composite
def nonsense(draw: st.DrawFn, now: float) -> Record:
    """A record, valid on its stream, that says nothing to this planner at `now`."""
    bad_fpm = draw(
        st.binary(max_size=30).filter(lambda b: not _is_fpm(b)).map(lambda b: b)
        | st.just(encode_fpm(fpm("", 1, wall=1.0, decode=(5, 5))))
        | st.just(encode_fpm(Fpm(version=9, worker_id="1", counter_id=10**9)))
        | st.just(encode_fpm(fpm("1" * 300, 1)))
        | st.just(msgspec.msgpack.encode({"worker_id": "1", "counter_id": 10**9, "wall_time": float("nan")}))
        | st.just(msgspec.msgpack.encode({"worker_id": "1", "counter_id": -1}))
    )
    ago = draw(st.floats(1.0, 90.0))
    record: Record = draw(
        st.sampled_from(
            [
                FpmBatch(
                    dgd=DGD,
                    role=draw(st.sampled_from(ROLES)),
                    source="x",
                    received_at=now,
                    items=[FpmItem(now, 7, 0, bad_fpm)] * 3,
                ),
                FpmBatch(
                    dgd=DGD,
                    role="encode",
                    source="x",
                    received_at=now,
                    items=[FpmItem(now, 7, 0, encode_fpm(fpm("1", 10**9, decode=(50, 50_000))))],
                ),
                TrafficWindow(dgd=DGD, window_id="x", source="x", start=0.0, end=0.0, requests=2**40),
                TrafficWindow(dgd=DGD, window_id="y", source="x", start=0.0, end=1e9, requests=0),
                WorkerInventory(dgd=DGD, source="x", observed_at=now, roles={"encode": RoleInventory(ready=9)}),
                WorkerInventory(dgd=DGD, source="x", observed_at=0.0, roles={}),
                Prediction(
                    dgd=DGD, prediction_id="x", source="x", made_at=0.0, expires_at=now - ago, requests_per_s=1e15
                ),
                Prediction(
                    dgd=DGD, prediction_id="x", source="headrace.x", made_at=now, expires_at=1e12, requests_per_s=1e15
                ),
                Proposal(
                    dgd=DGD, proposal_id="x", source="x", kind=ProposalKind.REJECT, issued_at=0.0, expires_at=now - ago
                ),
                Proposal(
                    dgd=DGD,
                    proposal_id="x",
                    source="headrace.x",
                    kind=ProposalKind.REJECT,
                    issued_at=0.0,
                    expires_at=1e12,
                ),
                Proposal(
                    dgd=DGD,
                    proposal_id="x",
                    source="y",
                    kind=ProposalKind.SET,
                    issued_at=0.0,
                    expires_at=1e12,
                    targets={"encode": 9},
                ),
                ConfigRevision(dgd=DGD, revision=0, at=now, config={"mode": "agg"}),
                ConfigRevision(dgd=DGD, revision=9, at=now, config={"ttft": -5}),
                DecisionAck(dgd=DGD, epoch=2**63 - 1, decision_id=0, status=AckStatus.APPLIED, executor="x", at=now),
                DecisionAck(dgd=DGD, epoch=0, decision_id=2**63 - 1, status=AckStatus.APPLIED, executor="x", at=now),
                DecisionAck(dgd=DGD, epoch=1, decision_id=2**63 - 1, status=AckStatus.ACCEPTED, executor="x", at=now),
                replace(EXAMPLES["decisions"], dgd=DGD, epoch=2**63 - 1),
                replace(EXAMPLES["ticks"], dgd=DGD),
                replace(EXAMPLES["fpm"], dgd="ml/other"),
                EXAMPLES["state"],
            ]
        )
    )
    return record


def _is_fpm(data: bytes) -> bool:
    try:
        found = msgspec.msgpack.decode(data, type=Fpm)
    except (msgspec.DecodeError, RecursionError):
        return False
    return found.version == 1 and bool(found.worker_id)


def essence(records: list[Record]) -> list[Record]:
    """What was decided, without the counters and notes of what was passed over."""
    return [
        replace(r, counters={}, notes=[], unknown={k: v for k, v in r.unknown.items() if k != "roles"})
        if isinstance(r, TickReport)
        else r
        for r in records
    ]


@given(histories(revise=False, rounds=6), st.data())
@settings(max_examples=80)
def test_nonsense_changes_nothing_about_what_is_decided(
    history: tuple[dict[str, Any], list[Move]], data: st.DataObject
) -> None:
    config, moves = history
    config = config | {"mode": "disagg"}
    clean, dirty = Player(planner(config)), Player(planner(config))
    # The first word about the inventory tells that there is somebody who counts; it must be a right one here.
    heard = any(isinstance(m.record, WorkerInventory) and m.record.roles for m in moves[:1])
    for move in moves:
        record = data.draw(nonsense(dirty.now)) if data.draw(st.booleans()) else None
        if isinstance(record, WorkerInventory) and not heard:
            record = None
        heard = heard or isinstance(move.record, WorkerInventory)
        if record is not None:
            with suppress(RecordError):
                dirty.planner.handle(record, dirty.now)
        assert essence(dirty.play(move)) == essence(clean.play(move))


@given(histories(revise=False, rounds=6), st.lists(st.integers(0, 10), min_size=8, max_size=8))
@settings(max_examples=60)
def test_records_that_come_again_later_change_nothing(
    history: tuple[dict[str, Any], list[Move]], back: list[int]
) -> None:
    """A log that is read twice from some point on: everything comes again, in order, within the same second."""
    config, moves = history
    clean, dirty = Player(planner(config)), Player(planner(config))
    given_records: list[tuple[Record, float]] = []
    handle = dirty.planner.handle

    def remember(record: Record, now: float) -> list[Record]:
        given_records.append((record, now))
        return handle(record, now)

    for i, move in enumerate(moves):
        dirty.planner.handle = remember  # type: ignore[method-assign]
        assert essence(dirty.play(move)) == essence(clean.play(move))
        for record, _ in given_records[-back[i % len(back)] :] if back[i % len(back)] else []:
            handle(record, dirty.now)
