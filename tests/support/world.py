"""A small made-up world for planner tests: engines with known speed, and records about them."""

from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.inventory import Capabilities, RoleInventory, WorkerInventory
from headrace.schemas.traffic import Distribution, TrafficWindow

DGD = "ml/llama"
LIMITS = Capabilities(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=100_000, context_length=8192)


def prefill_s(tokens: float) -> float:
    """10 ms and 20 us a token."""
    return 0.010 + 0.000_02 * tokens


def decode_s(requests: float, kv_tokens: float) -> float:
    """5 ms, 50 us a request, 0.1 us a KV token."""
    return 0.005 + 0.000_05 * requests + 0.000_000_1 * kv_tokens


def fpm(worker: str, counter: int, *, wall: float = 0.0, prefill: tuple[int, int] = (0, 0), decode: tuple[int, int] = (0, 0),
        queued_prefill: tuple[int, int] = (0, 0), queued_decode: tuple[int, int] = (0, 0), rank: int = 0) -> Fpm:  # fmt: skip
    """An FPM; pairs are (requests, tokens)."""
    return Fpm(
        worker_id=worker,
        dp_rank=rank,
        counter_id=counter,
        wall_time=wall,
        scheduled_requests=ScheduledRequests(
            num_prefill_requests=prefill[0],
            sum_prefill_tokens=prefill[1],
            num_decode_requests=decode[0],
            sum_decode_kv_tokens=decode[1],
        ),
        queued_requests=QueuedRequests(
            num_prefill_requests=queued_prefill[0],
            sum_prefill_tokens=queued_prefill[1],
            num_decode_requests=queued_decode[0],
            sum_decode_kv_tokens=queued_decode[1],
        ),
    )


def batch(role: str, at: float, *fpms: Fpm, publisher: int = 7, dgd: str = DGD) -> FpmBatch:
    items = [FpmItem(at, publisher + int(f.worker_id or 0), f.counter_id, encode_fpm(f)) for f in fpms]
    return FpmBatch(dgd=dgd, role=role, source="test", received_at=at, items=items)


def raw_batch(role: str, at: float, *payloads: bytes) -> FpmBatch:
    items = [FpmItem(at, 7, i, p) for i, p in enumerate(payloads)]
    return FpmBatch(dgd=DGD, role=role, source="test", received_at=at, items=items)


def inventory(at: float, gpus: int | None = 1, starting: dict[str, int] | None = None, **ready: int) -> WorkerInventory:
    roles = {
        role: RoleInventory(ready=n, starting=(starting or {}).get(role, 0), gpus_per_replica=gpus, capabilities=LIMITS)
        for role, n in ready.items()
    }
    return WorkerInventory(dgd=DGD, source="test", observed_at=at, roles=roles)


def window(
    start: float, end: float, requests: int | None, isl: float = 1000.0, osl: float = 200.0, **more: object
) -> TrafficWindow:
    count = requests or 0
    fields: dict[str, object] = {
        "isl": Distribution(count=count, mean=isl if count else None),
        "osl": Distribution(count=count, mean=osl if count else None),
    } | more
    if requests is None:
        fields["unknown"] = {"requests": "the scrape failed"}
    return TrafficWindow(
        dgd=DGD, window_id=f"test:{start:g}:{end:g}", source="test", start=start, end=end, requests=requests, **fields
    )  # type: ignore[arg-type]


def prefill_lesson(at: float, worker: str = "1", first: int = 1) -> FpmBatch:
    """Enough iterations for a prefill engine's speed to be known: 100 to 2000 tokens, one request each."""
    sizes = (100, 100, 100, 100, 500, 1000, 1500, 2000) * 2  # the first passes of a worker teach nothing
    return batch(
        "prefill",
        at,
        *(fpm(worker, first + i, wall=prefill_s(n), prefill=(1, n)) for i, n in enumerate(sizes)),
    )


def decode_lesson(at: float, worker: str = "11", first: int = 1) -> FpmBatch:
    """Enough iterations for a decode engine's speed to be known."""
    loads = ((1, 500), (1, 500), (1, 500), (1, 500), (4, 3000), (8, 9000), (16, 15_000), (32, 40_000), (64, 60_000)) * 2
    return batch(
        "decode",
        at,
        *(fpm(worker, first + i, wall=decode_s(n, kv), decode=(n, kv)) for i, (n, kv) in enumerate(loads)),
    )
