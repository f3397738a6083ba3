"""Does a Faust table count exactly through a join and a kill -9 on a real Kafka? Prints the counts; decides nothing.

    python tests/bench/probe_faust.py at_least_once|exactly_once [messages [messages a second]]

One broker, a topic of four partitions, 64 keys, a table with one increment a message. A second worker joins after a
quarter of the messages, the first is killed after five eighths; then the table's changelog is compared with what was
sent.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kafka_support import kafka_server

APP = """
import os
import faust

app = faust.App(
    "count", broker=os.environ["BROKER"], store="memory://", web_enabled=False, datadir=os.environ["DATA"],
    processing_guarantee=os.environ["GUARANTEE"], topic_partitions=4, topic_replication_factor=1,
    broker_session_timeout=6.0, broker_heartbeat_interval=1.0,
)
source = app.topic("in", key_serializer="raw", value_serializer="raw", key_type=bytes, value_type=bytes, partitions=4)
counts = app.Table("counts", default=int, partitions=4, key_type=str, value_type=int)

@app.agent(source)
async def count(stream):
    async for event in stream.events():
        counts[event.key.decode()] += 1

app.main()
"""
KEYS = 64
SETTLED_S = 60.0  # the table's total has not changed for so long


class Workers:
    """Faust workers, as processes with a log each."""

    def __init__(self, folder: Path, broker: str, guarantee: str) -> None:
        self.folder = folder
        self.environment = os.environ | {"BROKER": f"kafka://{broker}", "GUARANTEE": guarantee}
        self.started: list[subprocess.Popen[bytes]] = []
        (folder / "app.py").write_text(APP)

    def start(self) -> None:
        name = f"w{len(self.started) + 1}"
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "app.py", "worker", "-l", "warn", "--without-web"]
            environment = self.environment | {"DATA": str(self.folder / name)}
            self.started.append(
                subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


async def table(broker: str, guarantee: str) -> dict[str, int]:
    """The newest value of each key in the table's changelog."""
    isolation = "read_committed" if guarantee == "exactly_once" else "read_uncommitted"
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=broker, isolation_level=isolation, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([TopicPartition("count-counts-changelog", n) for n in range(4)])
    found: dict[str, int] = {}
    while got := await consumer.getmany(timeout_ms=2000):
        for records in got.values():
            found |= {record.key.decode().strip('"'): int(json.loads(record.value)) for record in records}
    await consumer.stop()
    return found


async def send(broker: str, workers: Workers, messages: int, per_s: float) -> dict[str, int]:
    sent = dict.fromkeys((f"k{n}" for n in range(KEYS)), 0)
    producer: Any = AIOKafkaProducer(bootstrap_servers=broker, enable_idempotence=True)
    await producer.start()
    began = time.monotonic()
    for n in range(messages):
        key = f"k{n % KEYS}"
        await producer.send("in", b"x", key=key.encode())
        sent[key] += 1
        if n == messages // 4:
            workers.start()
        if n == messages * 5 // 8:
            workers.started[0].kill()
        await asyncio.sleep(max(0.0, began + n / per_s - time.monotonic()))
    await producer.stop()
    return sent


async def probe(guarantee: str, messages: int, per_s: float, folder: Path) -> None:
    with kafka_server(folder / "kafka") as kafka:
        broker = kafka.brokers[0].address
        admin = AIOKafkaAdminClient(bootstrap_servers=broker)
        await admin.start()
        await admin.create_topics([NewTopic("in", 4, 1)])
        await admin.close()
        workers = Workers(folder, broker, guarantee)
        workers.start()
        await asyncio.sleep(20)
        try:
            sent = await send(broker, workers, messages, per_s)
            found, since = await table(broker, guarantee), time.monotonic()
            while time.monotonic() < since + SETTLED_S:
                await asyncio.sleep(5)
                now = await table(broker, guarantee)
                if now != found:
                    found, since = now, time.monotonic()
            survivor = workers.started[1].poll()
        finally:
            workers.end()
    wrong = {key: found.get(key, 0) - n for key, n in sent.items() if found.get(key, 0) != n}
    print(f"{guarantee}: {messages} sent, {sum(found.values())} counted, {len(wrong)} of {KEYS} keys wrong")
    print(f"too many {sum(d for d in wrong.values() if d > 0)}, too few {-sum(d for d in wrong.values() if d < 0)}")
    print("the surviving worker runs" if survivor is None else f"the surviving worker ended with {survivor}:")
    print((folder / "w2.log").read_text(errors="replace")[-1500:])


def main(guarantee: str, messages: str = "12000", per_s: str = "200") -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(probe(guarantee, int(messages), float(per_s), Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
