"""Decision: how many workers each role shall have. This record and its ack are the public contract."""

import msgspec

from headrace.schemas.base import Count, Record, Role, Seconds, Serial
from headrace.schemas.reasons import DecisionReason


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """The records that led to a decision, so that it can be recomputed from the log."""

    tick: Serial  # index of the tick that decided, on the DGD's grid
    config_revision: Serial = 0  # 0: the configuration that the planner started with
    model_revision: dict[Role, Serial] = {}  # of each role's performance model
    prediction: str | None = None  # id of the prediction that was used
    proposals: list[str] = []  # ids of the proposals that were used


class Decision(Record, frozen=True, kw_only=True, tag="headrace.decision.v1"):
    epoch: Serial  # rises with every new owner of the DGD
    decision_id: Serial  # 0, 1, 2, ... for the life of the DGD
    issued_at: Seconds  # seconds since 1970, UTC
    expires_at: Seconds  # after this nobody shall begin to act on it
    targets: dict[Role, Count]  # replicas that each role shall have; a role that is not named stays as it is
    previous: dict[Role, Count]  # replicas (ready and starting) when it was decided
    reasons: dict[Role, DecisionReason]  # why each target is what it is
    causes: Causes  # what it was decided on
    advisory: bool = False  # true: nobody shall act on it
