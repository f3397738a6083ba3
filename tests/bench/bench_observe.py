"""What it costs to observe an FPM: decode, keep the newest per engine, learn from it; against decoding it alone.

python tests/bench/bench_observe.py [engines] [FPMs per engine]
"""

import sys
from time import perf_counter

import msgspec

from headrace.models.perf.engine import EngineModel
from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.streams.agents.fpm import FpmObserver

BATCH = 64
REPEATS = 5


def batches(engines: int, each: int) -> list[FpmBatch]:
    """FPMs of mixed iterations, interleaved as they come from a fleet, in batches of 64."""
    items = []
    for i in range(each):
        for engine in range(engines):
            n = (7 * i + 13 * engine) % 200
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
    began = perf_counter()
    for batch in work:
        for item in batch.items:
            decode(item.payload)
    return perf_counter() - began


def observe(work: list[FpmBatch]) -> float:
    """Seconds to hand every batch to an observer, learning included."""
    observer = FpmObserver({"agg": EngineModel()}, stale_after_s=10.0, max_skew_s=30.0)
    began = perf_counter()
    for batch in work:
        observer.handle(batch, batch.received_at)
    observer.learn()
    took = perf_counter() - began
    assert observer.counters.seen == sum(len(batch.items) for batch in work)
    return took


def main() -> None:
    engines = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    each = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    work = batches(engines, each)
    count = engines * each
    decoding = min(decode_only(work) for _ in range(REPEATS)) / count
    observing = min(observe(work) for _ in range(REPEATS)) / count
    print(f"{count} FPMs of {engines} engines, best of {REPEATS}")
    print(f"decode only      {1e6 * decoding:6.2f} us per FPM   {1 / decoding:10,.0f} /s")
    print(f"decode and learn {1e6 * observing:6.2f} us per FPM   {1 / observing:10,.0f} /s")
    print(f"ratio            {observing / decoding:6.2f}")


if __name__ == "__main__":
    main()
