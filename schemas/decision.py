"""Decision: how many workers each role shall have. This record and its ack are the public contract."""

import msgspec

from headrace.schemas.base import Count, Record, Role, Seconds, Serial


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """The records that led to a decision, so that it can be recomputed from the log."""

    tick: Serial
    config_revision: Serial = 0
    model_revision: dict[Role, Serial] = {}
    prediction: str | None = None
    proposals: list[str] = []


class Decision(Record, frozen=True, kw_only=True, tag="headrace.decision.v1"):
    epoch: Serial  # rises with every new owner of the DGD
    decision_id: Serial  # 0, 1, 2, ... for the life of the DGD
    issued_at: Seconds
    expires_at: Seconds
    targets: dict[Role, Count]
    previous: dict[Role, Count]
    reasons: dict[Role, str]  # values of `headrace.schemas.reasons.Reason`
    causes: Causes
    advisory: bool = False  # true: nobody shall act on it
