"""Made-up decisions and acks."""

from typing import Any

from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.decision import Causes, Decision

DGD = "ml/llama"


def decision(decision_id: int = 0, epoch: int = 1, **changed: Any) -> Decision:
    """A decision issued at 1000 s and good until 2000 s."""
    fields: dict[str, Any] = {
        "dgd": DGD,
        "epoch": epoch,
        "decision_id": decision_id,
        "issued_at": 1000.0,
        "expires_at": 2000.0,
        "targets": {"prefill": 1, "decode": 2 + decision_id},
        "previous": {"prefill": 1, "decode": 1},
        "reasons": {"prefill": "no_change", "decode": "scale_up"},
        "causes": Causes(tick=7),
        **changed,
    }
    return Decision(**fields)


def ack(decision_id: int = 0, epoch: int = 1, status: AckStatus = AckStatus.APPLIED, **changed: Any) -> DecisionAck:
    fields: dict[str, Any] = {
        "dgd": DGD,
        "epoch": epoch,
        "decision_id": decision_id,
        "status": status,
        "executor": "other",
        "at": 1001.0,
        **changed,
    }
    return DecisionAck(**fields)
