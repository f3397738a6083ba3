"""Why a role's count is what it is: the enumeration that operators filter on. Prose belongs elsewhere."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta


class Reason(StrEnum):
    # neither loop has spoken
    UNSET = "unset"
    DISABLED = "disabled"
    NOT_DUE = "not_due"
    # holds, with what was missing
    NO_INVENTORY = "no_inventory"
    NO_FPM_DATA = "no_fpm_data"
    NO_TRAFFIC_DATA = "no_traffic_data"
    PREDICT_FAILED = "predict_failed"
    MODEL_NOT_READY = "model_not_ready"
    PARTNER_NOT_READY = "partner_not_ready"
    INSUFFICIENT_DATA = "insufficient_data"
    WORKER_COUNT_MISMATCH = "worker_count_mismatch"
    SCALING_IN_PROGRESS = "scaling_in_progress"
    NO_CAPABILITIES = "no_capabilities"
    # wants
    NO_CHANGE = "no_change"
    SCALE_UP = "scale_up"
    SCALE_DOWN = "scale_down"
    SCALE = "scale"
    SET_LOWER_BOUND = "set_lower_bound"
    SCALE_UP_CANNOT_HELP = "scale_up_cannot_help"
    SCALE_DOWN_REFUSED_CONSOLIDATION = "scale_down_refused_consolidation"
    SCALE_DOWN_CAPPED_BY_THROUGHPUT = "scale_down_capped_by_throughput"
    STABILISING = "stabilising"  # less would do now, but not yet for long enough
    # reconciliation and constraints
    OVERRIDE_BY_USER = "override_by_user"
    REJECTED_BY_USER = "rejected_by_user"
    CLAMPED_TO_FLOOR = "clamped_to_floor"
    CLAMPED_TO_CEILING = "clamped_to_ceiling"
    MIN_ENDPOINT = "min_endpoint"
    MAX_STEP = "max_step"
    CORRECTION_LIMIT = "correction_limit"  # a correction may ask only for so much more than the profile
    GPU_BUDGET_CEILING = "gpu_budget_ceiling"
    GPU_BUDGET_FLOOR = "gpu_budget_floor"
    GPU_SHAPE_UNKNOWN = "gpu_shape_unknown"
    # the world is not what was decided
    DRIFT = "drift"


class Outcome(StrEnum):
    """How an outstanding decision ended, or that it has not."""

    OUTSTANDING = "outstanding"
    APPLIED = "applied"
    REJECTED = "rejected"
    FAILED = "failed"
    EXPIRED = "expired"
    TIMED_OUT = "timed_out"  # no ack within ack_timeout of its issue
    SUPERSEDED = "superseded"  # a new owner found it unsettled and overtook it by its own


class DeadLetterReason(StrEnum):
    """Why bytes could not be used."""

    UNDECODABLE = "undecodable"  # no JSON or msgpack, wrong types, NaN, out of bounds, a field missing
    UNSUPPORTED_VERSION = "unsupported_version"  # the right record in another major version
    WRONG_SCHEMA = "wrong_schema"  # another record than the stream carries
    WRONG_TOPIC = "wrong_topic"  # an event envelope of another topic than FPM
    EMPTY_WORKER_ID = "empty_worker_id"  # an FPM that belongs to no engine
    TOO_MANY_WORKERS = "too_many_workers"  # more engine ranks than any fleet has: ids are made up
    UNKNOWN_DGD = "unknown_dgd"  # of a DGD that the reader does not know
    NOT_AN_INPUT = "not_an_input"  # a record that its reader has no use for
    INVALID = "invalid"  # well-formed, but against a rule that the message names


# The same enumerations as the records carry them: open, since a reader must survive a reason that it does not know.
DecisionReason = Annotated[
    str, Meta(title="Reason", extra_json_schema={"x-extensible-enum": [reason.value for reason in Reason]})
]
OutcomeName = Annotated[
    str, Meta(title="Outcome", extra_json_schema={"x-extensible-enum": [outcome.value for outcome in Outcome]})
]
DeadLetterReasonName = Annotated[
    str,
    Meta(title="DeadLetterReason", extra_json_schema={"x-extensible-enum": [r.value for r in DeadLetterReason]}),
]
