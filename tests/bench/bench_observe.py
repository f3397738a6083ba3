"""What it costs to observe an FPM: decode, keep the newest per engine, learn from it.

The baseline is bare msgspec: decoding the same payloads and doing nothing with them. CPU seconds of one process, so
FPMs per second are those of one core. Once every FPM is learned from, with a tick after each 1024; once with a tick
each 5 s, as a planner has it, where one in eight is of what goes beyond 1024 a tick and role.

python tests/bench/bench_observe.py [engines] [FPMs per engine]
"""

import sys
from time import process_time

import msgspec

from headrace.models.perf.engine import EngineModel
from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests, decode_fpm, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.streams.agents.fpm import FIRST_PASSES, FpmObserver
from headrace.streams.agents.rows import ALL_OF

BATCH = 64
REPEATS = 5
TICK_S = 5.0
LEAST = 100_000  # FPMs per second and core: what is wanted


def batches(engines: int, each: int) -> list[FpmBatch]:
    """FPMs of mixed iterations, interleaved as they come from a fleet, in batches of 64."""
    items = []
    for i in range(each):
        for engine in range(engines):
            n = 1 + (7 * i + 13 * engine) % 199
            prompt = 512 if (i + engine) % 8 == 0 else 0
            fpm = Fpm(
                worker_id=str(7_587_000_000_000_000_000 + engine),
                counter_id=i + 1,
                wall_time=0.005 + 0.000_05 * n + 0.000_02 * prompt,
                scheduled_requests=ScheduledRequests(
                    num_prefill_requests=1 if prompt else 0,
                    sum_prefill_tokens=prompt,
                    num_decode_requests=n,
                    sum_decode_kv_tokens=900 * n,
                    var_decode_kv_tokens=1234.5,
                ),
                queued_requests=QueuedRequests(num_prefill_requests=n % 3, sum_prefill_tokens=1000 * (n % 3)),
            )
            items.append(FpmItem(0.02 * i, 1000 + engine, i, encode_fpm(fpm)))
    return [
        FpmBatch(dgd="bench/agg", role="agg", source="bench", received_at=chunk[-1].published_at, items=chunk)
        for chunk in (items[i : i + BATCH] for i in range(0, len(items), BATCH))
    ]


def decode_only(work: list[FpmBatch]) -> float:
    """Seconds to decode every payload and do nothing with it."""
    decode = msgspec.msgpack.Decoder(Fpm).decode
    began = process_time()
    for batch in work:
        for item in batch.items:
            decode(item.payload)
    return process_time() - began


def observe(work: list[FpmBatch], *, learn_all: bool) -> float:
    """Seconds to hand every batch to an observer, learning included."""
    model = EngineModel()
    observer = FpmObserver({"agg": model}, stale_after_s=10.0, max_skew_s=30.0)
    handled, next_tick = 0, TICK_S
    began = process_time()
    for batch in work:
        if handled + len(batch.items) > ALL_OF if learn_all else batch.received_at >= next_tick:
            observer.begin_tick(batch.received_at)
            handled, next_tick = 0, next_tick + TICK_S
        observer.handle(batch, batch.received_at)
        handled += len(batch.items)
    observer.learn()
    took = process_time() - began
    assert observer.counters.seen == sum(len(batch.items) for batch in work)
    if learn_all:
        busy = sum(fpm.wall_time > 0 for batch in work for fpm in map(_fpm, batch.items))
        assert model.revision == busy - FIRST_PASSES * len(observer.ranks["agg"])
    return took


def _fpm(item: FpmItem) -> Fpm:
    return decode_fpm(item.payload)


def main() -> None:
    engines = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    each = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    work = batches(engines, each)
    count = engines * each
    decoding = min(decode_only(work) for _ in range(REPEATS)) / count
    every = min(observe(work, learn_all=True) for _ in range(REPEATS)) / count
    flood = min(observe(work, learn_all=False) for _ in range(REPEATS)) / count
    print(f"{count} FPMs of {engines} engines, best of {REPEATS}")
    for what, spent in (
        ("baseline: bare msgspec decode", decoding),
        ("decode, observe, learn from all", every),
        (f"the same with a tick each {TICK_S:g} s", flood),
    ):
        print(f"{what:32} {1e6 * spent:6.2f} us per FPM  {1 / spent:10,.0f} /s  {spent / decoding:5.2f} x baseline")
    print(f"wanted: {LEAST:,} /s and core; learning from all: {1 / every:,.0f}")


if __name__ == "__main__":
    main()
