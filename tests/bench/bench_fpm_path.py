"""The FPM path on a real NATS server: source -> bus -> decode -> observe -> regression, against bare nats-py.

The baseline publishes the same batches with plain nats-py (JetStream, a window of awaited acks), reads them with its
ordered consumer, and does nothing but decode them with msgspec. Both run in this process, in turn, on one server.
"""

import asyncio
import gc
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StorageType, StreamConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from world import decode_s, fpm, inventory, prefill_s

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.sources.fpm_packer import FpmPacker, Route
from headrace.schemas.codec import encode
from headrace.schemas.config import planner_config
from headrace.schemas.fpm import TOPIC, Fpm, FpmEnvelope, encode_envelope, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.streams import FPM, STREAMS
from headrace.streams.planner import Planner

DGD = "ml/llama"
WORKERS = 100  # half prefill, half decode
ITERATIONS = 400  # per worker
PER_FLUSH = 50  # FPMs that come in between two flushes of the source: one of every worker and role
ROUNDS = 5
HELD = 40  # workers whose memory is watched for an hour, half of each role
START = 1_790_000_000.0
# A tick a second: so many iterations of 50 engines are all learned from; of a flood only a part would be.
CONFIG = {"optimization_target": "sla", "enable_load_scaling": True, "load_adjustment_interval_seconds": 1}

Envelopes = list[tuple[str, bytes]]


def envelopes() -> Envelopes:
    """What 100 engines publish, in the order of their iterations."""
    out = []
    for i in range(ITERATIONS):
        for w in range(WORKERS):
            role = "prefill" if w % 2 else "backend"
            tokens, n, kv = 64 * (1 + (i * 7 + w) % 60), 1 + (i + w) % 40, 900 * (1 + (i + w) % 40)
            one = (
                fpm(str(2**62 + w), i + 1, wall=prefill_s(tokens), prefill=(1, tokens))
                if w % 2
                else fpm(str(2**62 + w), i + 1, wall=decode_s(n, kv), decode=(n, kv))
            )
            envelope = FpmEnvelope(1000 + w, i, int(1000 * (START + i * 0.05)), TOPIC, encode_fpm(one))
            out.append((f"namespace.dynamo.component.{role}.endpoint.generate.{TOPIC}", encode_envelope(envelope)))
    return out


def pack(packer: FpmPacker, part: Envelopes, now: float) -> list[FpmBatch]:
    for subject, data in part:
        packer.add(subject, data, now)
    return packer.take()


def packer() -> FpmPacker:
    return FpmPacker([Route("dynamo", DGD)], source="bench")


def parts(all_of_them: Envelopes) -> list[tuple[float, Envelopes]]:
    step = 2 * PER_FLUSH
    return [(START + i / step * 0.05, all_of_them[i : i + step]) for i in range(0, len(all_of_them), step)]


async def ours(url: str, flushes: list[tuple[float, Envelopes]]) -> float:
    """FPMs per second through the whole path, with the ticks that fall into that time: all of them are learned from."""
    bus = NatsBus(url, prefix=f"b{time.monotonic_ns()}")
    await bus.open()
    try:
        return await through(RecordBus(bus, "bench", time.time), flushes)
    finally:
        await bus.close()


async def through(records: RecordBus, flushes: list[tuple[float, Envelopes]]) -> float:
    await records.bus.ensure([STREAMS["fpm"]])
    planner = Planner(planner_config(CONFIG), DGD, start=START)
    planner.handle(inventory(START, prefill=WORKERS // 2, decode=WORKERS // 2), START)
    total = sum(len(part) for _, part in flushes)
    reader = await records.read(FPM, DGD, after=0)
    start = time.perf_counter()

    async def source() -> None:
        packing = packer()
        for at in range(0, len(flushes), 4):  # as the outbox does: what has gathered goes out together
            await records.publish_many([b for now, part in flushes[at : at + 4] for b in pack(packing, part, now)])

    async def plan() -> None:
        while planner.fpm.counters.seen < total:
            for record, _ in await reader.next(timeout=10):
                assert isinstance(record, FpmBatch)
                while planner.next_tick_at <= record.received_at:
                    planner.tick(planner.next_tick_at)
                planner.handle(record, record.received_at)
        planner.fpm.learn()

    await asyncio.gather(source(), plan())
    rate = total / (time.perf_counter() - start)
    for role in ("prefill", "decode"):
        assert planner.models[role].revision > 0.95 * total / 2, planner.models[role].revision
    await reader.close()
    return rate


async def bare(url: str, batches: list[bytes]) -> float:
    """FPMs per second of nats-py alone with the same batches, decoded by msgspec."""
    client = Client()
    await client.connect(url)
    js = client.jetstream(publish_async_max_pending=256)
    name = f"bare{time.monotonic_ns()}"
    await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.fpm"], storage=StorageType.FILE))
    decode_batch = msgspec.msgpack.Decoder(FpmBatch).decode
    decode_fpm = msgspec.msgpack.Decoder(Fpm).decode
    total = sum(len(decode_batch(b).items) for b in batches)
    seen, done = 0, asyncio.Event()

    async def take(message: Msg) -> None:
        nonlocal seen
        for item in decode_batch(message.data).items:
            decode_fpm(item.payload)
            seen += 1
        if seen == total:
            done.set()

    await js.subscribe(f"{name}.fpm", ordered_consumer=True, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
    start = time.perf_counter()
    acks = [await js.publish_async(f"{name}.fpm", batch) for batch in batches]
    await done.wait()
    await asyncio.gather(*acks)
    rate = total / (time.perf_counter() - start)
    await client.close()
    return rate


def memory_over_an_hour() -> tuple[list[int], int]:
    """Bytes that a planner holds after 15, 30 and 60 minutes at 1 FPM/s of each worker, and of its last snapshot."""
    config = planner_config({"optimization_target": "sla", "enable_load_scaling": True})
    planner = Planner(config, DGD, start=0.0)
    sizes = []
    tracemalloc.start()
    for second in range(3600):
        for role in ("prefill", "decode"):
            items = [
                fpm(
                    str(w),
                    second + 1,
                    wall=0.01 + w * 1e-5,
                    prefill=(1, 500 + w) if role == "prefill" else (0, 0),
                    decode=(0, 0) if role == "prefill" else (4, 4000 + w),
                )
                for w in range(HELD // 2)
            ]
            packing = [(float(second), 1, second, encode_fpm(f)) for f in items]
            batch = msgspec.convert(
                {"dgd": DGD, "role": role, "source": "bench", "received_at": float(second), "items": packing}, FpmBatch
            )
            planner.handle(batch, float(second))
        if planner.next_tick_at <= second:
            planner.handle(inventory(float(second), prefill=HELD // 2, decode=HELD // 2), float(second))
            planner.tick(float(second))
        if second in (900, 1800, 3599):
            planner.fpm.learn()  # rows that wait for the next lesson come and go
            del batch, items, packing
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return sizes, len(planner.snapshot())


async def main() -> None:
    every = envelopes()
    flushes = parts(every)
    packing = packer()
    batches = [encode(b) for now, part in flushes for b in pack(packing, part, now)]
    print(f"{len(every)} FPMs of {WORKERS} workers in {len(batches)} batches of {len(every) / len(batches):.0f}")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedNats(folder) as server:
            for _ in range(ROUNDS):
                b, o = await bare(server.url, batches), await ours(server.url, flushes)
                ratios.append(o / b)
                print(f"  bare nats-py {b:9,.0f} FPM/s   Headrace {o:9,.0f} FPM/s   ratio {o / b:.2f}")
    print(f"ratio Headrace / bare nats-py: median {statistics.median(ratios):.2f} of {ROUNDS} (wanted: at least 0.50)")
    sizes, snapshot = memory_over_an_hour()
    held = ", ".join(f"{size / HELD:,.0f}" for size in sizes)
    print(
        f"planner memory with {HELD} workers: {held} bytes a worker after 15, 30 and 60 minutes; the last to the "
        f"first {sizes[-1] / sizes[0]:.2f}; snapshot {snapshot / HELD:,.0f} bytes a worker"
    )


if __name__ == "__main__":
    asyncio.run(main())
