"""Reading FPMs over the bus on Kafka, against a bare aiokafka consumer that decodes the same batches.

    python tests/bench/bench_kafka.py [batches]

Both read the same topic of one partition from its beginning, in turns; times are CPU seconds of this process, and only
the ratio means something. At least half the speed of the bare consumer is wanted.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import world
from aiokafka import AIOKafkaConsumer, TopicPartition
from kafka_support import KafkaCluster, kafka_server

from headrace.connectors.bus.kafka import KafkaBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.codec import decode
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.streams import FPM

PER_BATCH = 50
ROUNDS = 5


async def bare(kafka: KafkaCluster, batches: int) -> int:
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=kafka.brokers[0].address, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([TopicPartition("headrace.fpm", 0)])
    items = read = 0
    while read < batches:
        for records in (await consumer.getmany(timeout_ms=1000, max_records=5000)).values():
            for record in records:
                found = decode(FPM, record.value)
                assert isinstance(found, FpmBatch)
                items += len(found.items)
            read += len(records)
    await consumer.stop()
    return items


async def over_the_bus(records: RecordBus, batches: int) -> int:
    reader = await records.read(FPM, after=0)
    items = read = 0
    while read < batches:
        for found, _ in await reader.next(timeout=10, limit=5000):
            assert isinstance(found, FpmBatch)
            items += len(found.items)
            read += 1
    await reader.close()
    return items


async def cpu_s(work: Callable[[], Awaitable[int]], expected: int) -> float:
    began = time.process_time()
    assert await work() == expected
    return time.process_time() - began


async def main(batches: int) -> int:
    with tempfile.TemporaryDirectory() as folder, kafka_server(Path(folder)) as kafka:
        bus = KafkaBus(kafka.url + "?partitions=1")
        await bus.open()
        await bus.ensure([FPM])
        records = RecordBus(bus, "bench", time.time)
        fpms = [world.fpm("11", n, wall=0.01, decode=(4, 3000)) for n in range(PER_BATCH)]
        for start in range(0, batches, 1000):
            await records.publish_many(
                [
                    world.batch("decode", start + n, *fpms, publisher=start + n)
                    for n in range(min(1000, batches - start))
                ]
            )
        pairs = [
            (
                await cpu_s(lambda: bare(kafka, batches), batches * PER_BATCH),
                await cpu_s(lambda: over_the_bus(records, batches), batches * PER_BATCH),
            )
            for _ in range(ROUNDS)
        ]
        await bus.close()
    ratio = median(theirs / ours for theirs, ours in pairs)
    ours = median(seconds for _, seconds in pairs)
    print(f"{batches} batches of {PER_BATCH} FPMs: {batches * PER_BATCH / ours:,.0f} FPMs per CPU second")
    print(f"speed over the bus / bare aiokafka with decoding: {ratio:.2f} (at least 0.50)")
    return 0 if ratio >= 0.5 else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)))
