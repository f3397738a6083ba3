"""One simulated hour, planned over each bus: the decisions are the same bytes, whatever carries the records."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pytest
from kafka_support import fresh_prefix
from nats_support import nats_server
from node_support import CONFIG, DGD, START, Lab, Running, lab_on

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.simulator.loads import LoadSpec, generate
from headrace.connectors.simulator.simulate import Options, simulate
from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.config import planner_config
from headrace.schemas.decision import Decision
from headrace.schemas.streams import stream_of
from headrace.streams.planner import Planner
from headrace.streams.settings import settings
from headrace.streams.simulation import SimulationSettings, cluster_config

PLANNER = CONFIG | {
    "ttft_ms": 300,
    "itl_ms": 9,
    "load_adjustment_interval_seconds": 20,
    "max_gpu_budget": 96,
    "capacity_policy": "queue_aware",
    "queue_late_share": 0.03,
}
LOAD = LoadSpec(
    shape="sine", duration_s=3600, requests_per_s=0.5, peak_requests_per_s=6, period_s=1200, isl_mean=2000, osl_mean=150
)
GRID = Options(fpm_batch_s=20.0, traffic_window_s=20.0, inventory_s=20.0, bound=False)  # all at the time of a tick


@dataclass
class Recorder:
    """A planner without a bus in a simulated deployment, and what it was given when."""

    planner: Planner
    given: list[tuple[float, Record | None]] = field(default_factory=list)  # None: a tick
    said: list[bytes] = field(default_factory=list)

    @property
    def next_tick_at(self) -> float:
        return self.planner.next_tick_at

    def handle(self, record: Record, now: float) -> Sequence[Record]:
        self.given.append((now, record))
        return self.planner.handle(record, now)

    def tick(self, now: float) -> Sequence[Record]:
        self.given.append((now, None))
        said = self.planner.tick(now)
        self.said += decisions_in(said)
        return said


def decisions_in(records: Sequence[Record]) -> list[bytes]:
    return [encode(record) for record in records if isinstance(record, Decision)]


@pytest.fixture(scope="module")
def hour() -> Recorder:
    """What a planner without a bus is given, and decides, in a simulated hour."""
    planner = Planner(planner_config(PLANNER), DGD)
    planner.begin_epoch()
    planner.tick(START)
    recorder = Recorder(planner)
    simulated = SimulationSettings(preset="8b", fleet={"prefill": 1, "decode": 1}, startup_s=20)
    config = cluster_config(simulated, settings({"dgd": DGD, **PLANNER}), origin_s=START)
    simulate(generate(LOAD), config, recorder, GRID)
    return recorder


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with nats_server(tmp_path_factory.mktemp("nats"), store_bytes=1024 * 1024**3) as server:
        yield server


async def give(lab: Lab, node: Running, records: Sequence[Record], at: float) -> None:
    """Publish records of one stream, as stored at a time, and wait until the node has taken them."""
    lab.clock.at = at  # nobody is woken
    await lab.records.publish_many(records[:-1])
    await node.took(stream_of(records[-1]), await lab.records.publish(records[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "nats", "kafka"])
async def test_a_simulated_hour_gives_the_same_decisions_on_every_bus(
    kind: str, request: pytest.FixtureRequest, hour: Recorder
) -> None:
    async with lab_on(None if kind == "memory" else request.getfixturevalue(kind), fresh_prefix()) as lab:
        node = await lab.node(**PLANNER)
        said: list[bytes] = []
        # Records of one stream are read before the next stream's are written: a planner may take streams in any order.
        for (at, stream), group in groupby(hour.given, lambda pair: (pair[0], pair[1] and stream_of(pair[1]))):
            records = [record for _, record in group]
            if stream is None:
                await node.tick(at - lab.clock.at)
                said += decisions_in(node.said[-1])
            else:
                await give(lab, node, [record for record in records if record is not None], at)
        on_the_log = decisions_in(await lab.decisions())
    assert len(hour.said) > 5
    assert said == hour.said
    assert on_the_log == hour.said
