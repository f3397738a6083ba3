"""One real example of each record: half a minute in the life of `ml/llama-70b`, from what was seen to what came of it.

The documentation shows them, AsyncAPI carries them, and their bytes are the golden files of the tests.
"""

from zlib import crc32

from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import DECODE, PREFILL, Record
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.engine_profiles import EngineProfiles, RoleProfile, Source
from headrace.schemas.forecast_fit import ForecastFit
from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.inventory import Capabilities, RoleInventory, WorkerInventory
from headrace.schemas.prediction import Prediction
from headrace.schemas.profile import EngineProfile, PrefillProfile
from headrace.schemas.proposal import Proposal, ProposalKind
from headrace.schemas.reasons import DeadLetterReason, Outcome, Reason
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import BY_RECORD
from headrace.schemas.tick_report import Proposed, RoleReport, TickReport
from headrace.schemas.traffic import Distribution, TrafficWindow

_DGD = "ml/llama-70b"
_T = 1796086520.0  # 2026-12-01T00:55:20Z

_BUSY = Fpm(
    worker_id="9041998999865286175",
    counter_id=899,
    wall_time=0.015625,
    scheduled_requests=ScheduledRequests(
        num_decode_requests=3, sum_decode_kv_tokens=8288, var_decode_kv_tokens=3317282.75
    ),
)
_QUEUEING = Fpm(
    worker_id="9041998999865286176",
    counter_id=412,
    wall_time=0.078125,
    scheduled_requests=ScheduledRequests(
        num_prefill_requests=1, sum_prefill_tokens=512, num_decode_requests=4, sum_decode_kv_tokens=9216
    ),
    queued_requests=QueuedRequests(num_prefill_requests=2, sum_prefill_tokens=3700, var_prefill_length=2500.0),
)

FPM_BATCH = FpmBatch(
    dgd=_DGD,
    role=DECODE,
    source="dynamo-events",
    received_at=_T + 0.2,
    items=[
        FpmItem(_T + 0.17, 7508999995531477, 898, encode_fpm(_BUSY)),
        FpmItem(_T + 0.19, 2751904662878294, 411, encode_fpm(_QUEUEING)),
    ],
)

TRAFFIC_WINDOW = TrafficWindow(
    dgd=_DGD,
    window_id="1796086515",
    source="frontend-0",
    start=_T - 10,
    end=_T - 5,
    requests=17,
    isl=Distribution(count=17, mean=1850.0, bounds=[1000.0, 4000.0], counts=[6, 10, 1]),
    osl=Distribution(count=15, mean=210.0),
    ttft_s=Distribution(count=16, mean=0.31, bounds=[0.25, 0.5, 1.0], counts=[7, 6, 3, 0]),
    itl_s=Distribution(count=3140, mean=0.042),
    duration_s=Distribution(count=15, mean=9.1),
    unknown={"kv_hit_rate": "no series", "accept_length": "no series"},
)

WORKER_INVENTORY = WorkerInventory(
    dgd=_DGD,
    source="kubernetes",
    observed_at=_T - 2,
    roles={
        PREFILL: RoleInventory(ready=1, desired=1, gpus_per_replica=2, workers=["9041998999865286170"]),
        DECODE: RoleInventory(
            ready=2,
            desired=2,
            gpus_per_replica=2,
            capabilities=Capabilities(max_num_seqs=256, max_kv_tokens=262144, context_length=131072, dp_size=1),
            workers=["9041998999865286175", "9041998999865286176"],
        ),
    },
)

CONFIG_REVISION = ConfigRevision(
    dgd=_DGD,
    revision=7,
    at=_T - 3600,
    author="ops",
    config={
        "optimization_target": "sla",
        "enable_load_scaling": True,
        "ttft_ms": 400.0,
        "itl_ms": 50.0,
        "max_gpu_budget": 16,
    },
)

ENGINE_PROFILES = EngineProfiles(
    dgd=_DGD,
    at=_T - 900,
    roles={
        PREFILL: RoleProfile(
            source=Source.FILES,
            profile=EngineProfile(
                prefill=PrefillProfile(
                    isl=(100.0, 1000.0, 4000.0, 8000.0),
                    ttft_s=(0.02, 0.06, 0.22, 0.48),
                    throughput_per_gpu=(2500.0, 8333.0, 9091.0, 8333.0),
                )
            ),
            not_used={Source.BENCHMARK: "not configured", Source.AIC: "not configured"},
        ),
        DECODE: RoleProfile(
            source=Source.BENCHMARK,
            profile=EngineProfile(fpms=(_BUSY, _QUEUEING)),
            not_used={
                Source.AIC: "get_perf_metrics came first",
                Source.FILES: "get_perf_metrics came first",
            },
        ),
    },
)

PREDICTION = Prediction(
    dgd=_DGD,
    prediction_id="evening-peak-0042",
    source="capacity-team",
    made_at=_T - 4,
    expires_at=_T + 176,
    requests_per_s=4.6,
    isl=1900.0,
    osl=215.0,
    horizon_s=180.0,
    quantiles={"0.9": 5.4},
    priority=50,
    reason="weekday evening peak",
)

FORECAST_FIT = ForecastFit(
    dgd=_DGD,
    fit_id="rate:arima:96:1796086455",
    series="rate",
    kind="arima",
    options="auto, 180 s",
    at=96,
    newest=3.5,
    values={
        "order": {"p": 1, "d": 1, "q": 0, "constant": False, "log_unit": None, "unit": 3.25},
        "params": [-0.375, 0.0078125],
    },
    made_at=_T - 65,
)

PROPOSAL = Proposal(
    dgd=_DGD,
    proposal_id="game-night-7",
    source="events-calendar",
    kind=ProposalKind.AT_LEAST,
    issued_at=_T - 60,
    expires_at=_T + 7200,
    targets={DECODE: 3},
    priority=100,
    reason="match starts at 01:00",
)

DECISION = Decision(
    dgd=_DGD,
    epoch=3,
    decision_id=41,
    issued_at=_T,
    expires_at=_T + 1800,
    targets={PREFILL: 1, DECODE: 3},
    previous={PREFILL: 1, DECODE: 2},
    reasons={PREFILL: Reason.NO_CHANGE, DECODE: Reason.CLAMPED_TO_FLOOR},
    causes=Causes(
        tick=359217304,
        config_revision=7,
        model_revision={PREFILL: 118, DECODE: 2205},
        prediction="evening-peak-0042",
        proposals=["game-night-7"],
    ),
)

DECISION_ACK = DecisionAck(
    dgd=_DGD,
    epoch=3,
    decision_id=41,
    status=AckStatus.APPLIED,
    executor="kubernetes-0",
    at=_T + 94.5,
    counts={PREFILL: 1, DECODE: 3},
)

TICK_REPORT = TickReport(
    dgd=_DGD,
    tick=359217304,
    at=_T,
    due_at=_T,
    epoch=3,
    config_revision=7,
    mode="disagg",
    advisory=False,
    loops=["load"],
    roles={
        PREFILL: RoleReport(
            current=1,
            known={"workers_with_fpm": 1.0, "ready": 1.0, "starting": 0.0, "queued_prefill_tokens": 3700.0},
            estimated={"ttft_ms": 352.0},
            merged=1,
            target=1,
            load_reason=Reason.NO_CHANGE,
            throughput_reason=Reason.NOT_DUE,
            reason=Reason.NO_CHANGE,
        ),
        DECODE: RoleReport(
            current=2,
            known={"workers_with_fpm": 2.0, "ready": 2.0, "starting": 0.0, "decode_requests": 7.0},
            estimated={"itl_ms": 42.0},
            proposed=[
                Proposed(
                    proposal_id="game-night-7",
                    source="events-calendar",
                    kind=ProposalKind.AT_LEAST,
                    replicas=3,
                    priority=100,
                    reason="match starts at 01:00",
                    used=True,
                )
            ],
            merged=3,
            target=3,
            load_reason=Reason.NO_CHANGE,
            throughput_reason=Reason.NOT_DUE,
            reason=Reason.CLAMPED_TO_FLOOR,
        ),
    },
    load={"requests_per_s": 3.4, "isl": 1850.0, "osl": 210.0, "ttft_ms": 310.0, "itl_ms": 42.0},
    forecast={"requests_per_s": 4.6, "isl": 1900.0, "osl": 215.0, "horizon_s": 180.0, "made_at": _T - 4},
    unknown={"kv_hit_rate": "no series"},
    decision_id=41,
    outstanding=41,
    last_outcome=Outcome.OUTSTANDING,
    counters={"fpm_seen": 128114, "fpm_duplicate": 2},
    positions={"fpm": 40211, "traffic": 8122, "inventory": 911},
)

_BAD_FPM = encode_fpm(Fpm(worker_id="", counter_id=1))

DEAD_LETTER = DeadLetter(
    dgd=_DGD,
    reason=DeadLetterReason.EMPTY_WORKER_ID,
    message="FPM without a worker_id cannot be attributed to an engine",
    reader="headrace.planner",
    stream="fpm",
    position=None,
    at=_T - 1,
    data=_BAD_FPM,
    size=len(_BAD_FPM),
    headers={"source": "dynamo-events", "publisher": "7508999995531477", "sequence": "0"},
    item=3,
)

_SNAPSHOT = b'{"version":1,"dgd":"ml/llama-70b"}'  # a real one goes on for some kilobytes

PLANNER_STATE = PlannerState(
    dgd=_DGD,
    epoch=3,
    taken_at=_T + 1,
    positions={"fpm": 40215, "traffic": 8122, "inventory": 911},
    crc32=crc32(_SNAPSHOT),
    state=_SNAPSHOT,
)

# By the name of their stream, in the order of the stream table.
EXAMPLES: dict[str, Record] = {
    BY_RECORD[type(record)].name: record
    for record in (
        FPM_BATCH,
        TRAFFIC_WINDOW,
        WORKER_INVENTORY,
        CONFIG_REVISION,
        ENGINE_PROFILES,
        PREDICTION,
        FORECAST_FIT,
        PROPOSAL,
        DECISION,
        DECISION_ACK,
        TICK_REPORT,
        DEAD_LETTER,
        PLANNER_STATE,
    )
}
