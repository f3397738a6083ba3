"""The executor inside the simulator: carries out decisions on the cluster, and acks them when the counts are there."""

from headrace.connectors.simulator.cluster import Cluster
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.decision import Decision
from headrace.schemas.errors import ConfigError

NAME = "simulator"


class SimulatedExecutor:
    """Keeps the rules of the decision protocol: ordered by (epoch, id), idempotent, nothing expired is done."""

    def __init__(self, cluster: Cluster) -> None:
        self.carried_out = 0
        self._cluster = cluster
        self._newest: tuple[int, int] | None = None
        self._outstanding: Decision | None = None

    def submit(self, decision: Decision, now: float) -> list[DecisionAck]:
        """Act on a decision (`now` in its time base). Advisory, repeated and overtaken ones change nothing."""
        key = (decision.epoch, decision.decision_id)
        if decision.advisory or (self._newest is not None and key <= self._newest):
            return []
        self._newest = key
        if now > decision.expires_at:
            return [self._ack(decision, AckStatus.EXPIRED, now, f"expired at {decision.expires_at:.3f}")]
        try:
            self._cluster.set_targets(decision.targets)
        except ConfigError as e:
            return [self._ack(decision, AckStatus.FAILED, now, str(e))]
        acks = []
        if self._outstanding is not None:
            why = f"superseded by decision {decision.decision_id}"
            acks.append(self._ack(self._outstanding, AckStatus.REJECTED, now, why))
        self.carried_out += 1
        self._outstanding = decision
        return [*acks, self._ack(decision, AckStatus.ACCEPTED, now), *self.settle(now)]

    def settle(self, now: float) -> list[DecisionAck]:
        """The ack of the outstanding decision, once the cluster shows its counts and has drained."""
        if self._outstanding is None or not self._cluster.targets_reached():
            return []
        decision, self._outstanding = self._outstanding, None
        return [self._ack(decision, AckStatus.APPLIED, now)]

    def _ack(self, decision: Decision, status: AckStatus, now: float, message: str = "") -> DecisionAck:
        return DecisionAck(
            dgd=decision.dgd,
            epoch=decision.epoch,
            decision_id=decision.decision_id,
            status=status,
            executor=NAME,
            at=now,
            counts={role: c.ready for role, c in self._cluster.counts().items()},
            message=message,
        )
