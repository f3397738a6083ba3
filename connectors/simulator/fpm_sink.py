"""Where FPMs go: into batches for a policy on a virtual clock, or onto the event plane as Dynamo's envelopes."""

from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.engine import Identity
from headrace.schemas.base import Role
from headrace.schemas.fpm import TOPIC, Fpm, FpmEnvelope, encode_envelope, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem


class BatchSink:
    """Collects FPMs per role until they are taken as FpmBatch records, each in the bytes that Dynamo would write."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.seen = 0
        self._dgd = config.dgd
        self._origin_s = config.origin_s
        self._items: dict[Role, list[FpmItem]] = {role: [] for role in config.roles}

    def __call__(self, worker: Identity, at: float, fpm: Fpm) -> None:
        item = FpmItem(self._origin_s + at, worker.publisher_id, fpm.counter_id - 1, encode_fpm(fpm))
        self._items[worker.role].append(item)

    def take(self, now: float) -> list[FpmBatch]:
        """One batch per role that said something since the last call; `now` in simulated seconds."""
        batches = []
        for role, items in self._items.items():
            if items:
                batches.append(
                    FpmBatch(
                        dgd=self._dgd, role=role, source="simulator", received_at=self._origin_s + now, items=items
                    )
                )
                self.seen += len(items)
                self._items[role] = []
        return batches


class EventPlaneSink:
    """Collects what workers would publish on core NATS: (subject, envelope bytes), in order."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.outbox: list[tuple[str, bytes]] = []
        self._origin_s = config.origin_s
        self._subjects = {role: config.subject(role) for role in config.roles}

    def __call__(self, worker: Identity, at: float, fpm: Fpm) -> None:
        published_at = int((self._origin_s + at) * 1000.0)
        envelope = FpmEnvelope(worker.publisher_id, fpm.counter_id - 1, published_at, TOPIC, encode_fpm(fpm))
        self.outbox.append((self._subjects[worker.role], encode_envelope(envelope)))

    def take(self) -> list[tuple[str, bytes]]:
        out, self.outbox = self.outbox, []
        return out
