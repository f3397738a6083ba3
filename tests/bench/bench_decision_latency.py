"""From an FPM that breaks the SLA to the decision on the topic: 100 workers, a real server, the planner as a process.

What the pipeline adds is (the batch on the bus - the FPM published) + (the decision read by a subscriber - the tick
due); the wait for the next tick is the operator's choice and not counted. Prints the distribution, and beside it a
bare round trip through the same server.
"""

import asyncio
import random
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Sequence
from pathlib import Path

import yaml
from nats.aio.client import Client

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from world import decode_s, fpm, inventory, prefill_s

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.codec import decode
from headrace.schemas.decision import Decision
from headrace.schemas.fpm import TOPIC, Fpm, FpmEnvelope, encode_envelope, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.streams import DECISIONS, FPM, STREAMS, TICKS
from headrace.schemas.tick_report import TickReport

DGD = "ml/llama"
WORKERS = 100
TICK_S = 0.25
DECISIONS_WANTED = 100
BACKGROUND_EVERY_S = 0.1  # each worker's next FPM


class Engines:
    """100 engines that publish; `queued` prompt tokens wait on every prefill engine."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sequence = 0
        self.queued = 0
        self.broke_at = 0.0

    async def publish(self, w: int, one: Fpm) -> None:
        role = "prefill" if w < WORKERS // 2 else "backend"
        envelope = FpmEnvelope(1000 + w, self._sequence, int(time.time() * 1000), TOPIC, encode_fpm(one))
        await self._client.publish(
            f"namespace.llama.component.{role}.endpoint.generate.{TOPIC}", encode_envelope(envelope)
        )

    async def round(self) -> None:
        self._sequence += 1
        for w in range(WORKERS):
            prefill = w < WORKERS // 2
            tokens = 200 + 30 * (self._sequence * 7 + w) % 60
            await self.publish(
                w,
                fpm(
                    str(w + 1),
                    self._sequence,
                    wall=prefill_s(tokens),
                    prefill=(1, tokens),
                    queued_prefill=(self.queued // 1000, self.queued),
                )
                if prefill
                else fpm(str(w + 1), self._sequence, wall=decode_s(20 + w, 20_000 + w), decode=(20 + w, 20_000 + w)),
            )

    async def run(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(BACKGROUND_EVERY_S)


async def measure(url: str, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds that the pipeline added to each decision, and bare round trips."""
    bus = NatsBus(url)
    await bus.open()
    await bus.ensure(STREAMS.values())
    records = RecordBus(bus, "bench", time.time)
    client = Client()
    await client.connect(url)
    config = {
        "dgd": DGD,
        "bus": url,
        "optimization_target": "sla",
        "enable_load_scaling": True,
        "enable_throughput_scaling": False,
        "ttft_ms": 100,
        "itl_ms": 100,
        "min_endpoint": WORKERS // 2,
        "load_adjustment_interval_seconds": TICK_S,
        "max_gpu_budget": -1,
        "rejected_retry_seconds": 0.001,
        "sources": {"dynamo_fpm": {}},
    }
    path = folder / "planner.yaml"
    path.write_text(yaml.safe_dump(config))
    planner = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace", "run", "-c", str(path), stdin=DEVNULL, stderr=DEVNULL
    )
    engines = Engines(client)
    background = [asyncio.create_task(engines.run()), asyncio.create_task(say_inventory(records))]
    try:
        await first_tick(records)
        added = [await one_decision(records, engines) for _ in range(DECISIONS_WANTED)]
    finally:
        for task in background:
            task.cancel()
        planner.terminate()
        await planner.wait()
    trips = [await round_trip(client) for _ in range(DECISIONS_WANTED)]
    await client.close()
    await bus.close()
    return added, trips


async def first_tick(records: RecordBus) -> None:
    """Return when the planner has reported a tick that knows its engines' speed."""
    ticks = await records.read(TICKS, DGD)
    while True:
        for report, _ in await ticks.next(timeout=60):
            assert isinstance(report, TickReport)
            if all("ttft_ms" in r.estimated or "itl_ms" in r.estimated for r in report.roles.values()):
                return await ticks.close()


async def say_inventory(records: RecordBus) -> None:
    while True:
        await records.publish(inventory(time.time(), prefill=WORKERS // 2, decode=WORKERS // 2))
        await asyncio.sleep(0.2)


async def one_decision(records: RecordBus, engines: Engines) -> float:
    """Break the SLA at a random moment, wait for the decision, reject it, and let the queues drain."""
    await reject_newest(records)  # on a slow machine the queues of before may have asked for one more
    decisions = await records.read(DECISIONS, DGD)
    batches = await records.read(FPM, DGD)
    await asyncio.sleep(random.uniform(0.0, TICK_S))
    engines.queued = 20_000
    published = time.time()
    await engines.round()
    on_bus = await seen_on_bus(batches, published)
    [(decision, _)] = await decisions.next(timeout=10)
    read_at = time.time()
    assert isinstance(decision, Decision)
    engines.queued = 0
    await engines.round()
    await reject_newest(records)
    await decisions.close()
    await batches.close()
    await asyncio.sleep(2 * TICK_S)
    due = decision.issued_at - decision.issued_at % TICK_S
    return (on_bus - published) + (read_at - due)


async def reject_newest(records: RecordBus) -> None:
    """Answer the newest decision, so that the next one may come. An answer that is repeated changes nothing."""
    newest = await records.bus.last(DECISIONS, DGD)
    if newest is None:
        return
    d = decode(DECISIONS, newest.data)
    assert isinstance(d, Decision)
    ack = DecisionAck(dgd=DGD, epoch=d.epoch, decision_id=d.decision_id, status=AckStatus.REJECTED, executor="bench",
                      at=time.time())  # fmt: skip
    await records.publish(ack)


async def seen_on_bus(batches: object, published: float) -> float:
    """When the last of the FPMs published from then on had come as a batch to a subscriber of the stream."""
    while True:
        for record, _ in await batches.next(timeout=10):  # type: ignore[attr-defined]
            assert isinstance(record, FpmBatch)
            if record.role == "prefill" and record.items[-1].published_at >= published - 0.001:
                return time.time()


async def round_trip(client: Client) -> float:
    """Seconds for a message to a server and back."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    start = time.perf_counter()
    await client.publish(inbox, b"x")
    await subscription.next_msg(timeout=5)
    took = time.perf_counter() - start
    await subscription.unsubscribe()
    return took


def line(name: str, seconds: Sequence[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    shown = [f"p{p} {1000 * cuts[p - 1]:6.1f}" for p in (50, 90, 95, 99)]
    return f"{name:28} {'  '.join(shown)}  max {1000 * max(seconds):6.1f} ms"


def histogram(seconds: Sequence[float], step_ms: int = 5) -> None:
    counts: dict[int, int] = {}
    for s in seconds:
        counts[int(1000 * s / step_ms)] = counts.get(int(1000 * s / step_ms), 0) + 1
    for slot in sorted(counts):
        print(f"  {slot * step_ms:4d} ms {'#' * counts.get(slot, 0)}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedNats(Path(folder) / "nats") as server:
            added, trips = await measure(server.url, Path(folder))
    print(line(f"pipeline, {len(added)} decisions", added))
    print(line("bare round trip of nats-py", trips))
    print(f"ratio of the medians: {statistics.median(added) / statistics.median(trips):.0f}")
    histogram(added)


if __name__ == "__main__":
    asyncio.run(main())
