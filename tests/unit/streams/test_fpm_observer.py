"""Observing FPMs: the newest per rank, each once, none after it has gone stale."""

import msgspec
import pytest
from world import DGD, batch, decode_s, fpm, raw_batch

from headrace.models.perf.engine import EngineModel, Kind
from headrace.schemas.fpm import Fpm, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.streams.agents.fpm import FIRST_PASSES, MAX_RANKS, FpmObserver
from headrace.streams.agents.payloads import MAX_LETTERS
from headrace.streams.agents.rows import ALL_OF


@pytest.fixture
def observer() -> FpmObserver:
    return FpmObserver({"decode": EngineModel(), "prefill": EngineModel()}, stale_after_s=10.0, max_skew_s=30.0)


def busy(worker: str, counter: int, requests: int = 4, **more) -> Fpm:
    return fpm(worker, counter, wall=decode_s(requests, 500), decode=(requests, 500), **more)


def state(observer: FpmObserver) -> bytes:
    """Everything but the counters of what was passed over."""
    observer.learn()
    kept = observer.to_state() | {"counters": observer.counters.seen}
    return msgspec.json.encode([kept, {role: m.to_state() for role, m in observer.models.items()}])


def requests(observer: FpmObserver, now: float, workers=None) -> dict[tuple[str, int], int]:
    fresh = observer.fresh("decode", now, workers)
    return {key: f.scheduled_requests.num_decode_requests for key, f in fresh.items()}


def test_the_newest_of_each_worker_and_rank_is_kept(observer):
    observer.handle(
        batch("decode", 1.0, busy("1", 1, 3), busy("1", 2, 5), busy("2", 1, 7), busy("1", 1, 9, rank=1)), 1.0
    )
    assert requests(observer, 1.0) == {("1", 0): 5, ("1", 1): 9, ("2", 0): 7}


def test_a_duplicate_counter_changes_nothing(observer):
    observer.handle(batch("decode", 1.0, busy("1", 1), busy("1", 2)), 1.0)
    before = state(observer)
    observer.handle(batch("decode", 1.0, busy("1", 2, 99), busy("1", 1, 99)), 1.0)
    assert state(observer) == before
    assert observer.counters.duplicate == 2


def test_a_repeated_batch_changes_nothing_even_much_later(observer):
    first = batch("decode", 1.0, *(busy("1", i) for i in range(1, 9)))
    observer.handle(first, 1.0)
    before = state(observer)
    observer.handle(first, 1.0)
    observer.handle(first, 100.0)
    assert state(observer) == before


def test_a_late_older_iteration_changes_nothing(observer):
    observer.handle(batch("decode", 2.0, busy("1", 9, 5)), 2.0)
    observer.handle(batch("decode", 1.0, busy("1", 8, 3)), 2.0)
    assert requests(observer, 2.0) == {("1", 0): 5}


def test_an_engine_that_falls_silent_becomes_unknown(observer):  # case T18, dynamo#11329
    observer.handle(batch("decode", 1.0, busy("1", 1), busy("2", 1)), 1.0)
    observer.handle(batch("decode", 9.0, busy("2", 2)), 9.0)
    assert set(requests(observer, 11.0)) == {("1", 0), ("2", 0)}
    assert set(requests(observer, 11.1)) == {("2", 0)}


def test_an_idle_heartbeat_is_known_to_be_idle(observer):  # case T18
    observer.handle(batch("decode", 1.0, busy("1", 1, 9)), 1.0)
    observer.handle(batch("decode", 2.0, fpm("1", 2)), 2.0)
    assert requests(observer, 2.0) == {("1", 0): 0}


def test_workers_that_the_inventory_does_not_list_are_dropped(observer):  # case T7, wva#368
    observer.handle(batch("decode", 1.0, busy("1", 1), busy("2", 1)), 1.0)
    assert set(requests(observer, 1.0, ["2", "3"])) == {("2", 0)}
    assert requests(observer, 1.0, []) == {}


def test_a_silent_rank_leaves_memory_at_last(observer):
    observer.handle(batch("decode", 1.0, busy("1", 1)), 1.0)
    observer.begin_tick(121.0)
    assert observer.workers("decode") == {"1"}
    observer.begin_tick(121.1)
    assert observer.workers("decode") == set()


# restarts


def test_a_restarted_publisher_counts_anew(observer):
    observer.handle(batch("decode", 1.0, busy("1", 500, 5), publisher=7), 1.0)
    observer.handle(batch("decode", 2.0, busy("1", 1, 6), publisher=8), 2.0)
    assert requests(observer, 2.0) == {("1", 0): 6}


def test_the_word_of_a_replaced_publisher_is_passed_over(observer):
    observer.handle(batch("decode", 2.0, busy("1", 1, 6), publisher=8), 2.0)
    observer.handle(batch("decode", 1.0, busy("1", 500, 5), publisher=7), 2.0)
    assert requests(observer, 2.0) == {("1", 0): 6}
    assert observer.counters.out_of_order == 1


def item(at: float, sequence: int, f: Fpm) -> FpmItem:
    return FpmItem(at, 7, sequence, encode_fpm(f))


def of(at: float, *items: FpmItem) -> FpmBatch:
    return FpmBatch(dgd=DGD, role="decode", source="test", received_at=at, items=list(items))


def test_an_engine_that_counts_anew_under_its_old_publisher_is_heard(observer):
    old = of(1.0, item(1.0, 10, busy("1", 500, 5)))
    observer.handle(old, 1.0)
    observer.handle(of(2.0, item(2.0, 11, busy("1", 1, 6)), item(2.1, 12, busy("1", 2, 7))), 2.1)
    assert requests(observer, 2.1) == {("1", 0): 7}
    observer.handle(old, 3.0)  # the repeat of what was said before the restart stays a repeat
    assert requests(observer, 3.0) == {("1", 0): 7}


def test_the_same_iteration_published_twice_is_counted_once(observer):
    observer.handle(of(1.0, item(1.0, 10, busy("1", 5)), item(1.1, 11, busy("1", 5))), 1.1)
    assert (observer.counters.seen, observer.counters.duplicate) == (1, 1)


# bad input


def test_an_empty_worker_id_is_a_dead_letter_and_changes_nothing(observer):  # case T17, dynamo#12591
    observer.handle(batch("decode", 1.0, busy("1", 1)), 1.0)
    before = state(observer)
    (letter,) = observer.handle(raw_batch("decode", 1.0, encode_fpm(busy("", 1))), 1.0)
    assert (letter.reason, letter.item, letter.at) == ("empty_worker_id", 0, 1.0)
    assert (observer.counters.bad, state(observer)) == (1, before)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "undecodable"),
        (b"\x91" * 5000, "undecodable"),
        (encode_fpm(Fpm(version=2, worker_id="1", counter_id=1)), "unsupported_version"),
        (msgspec.msgpack.encode({"worker_id": "1", "wall_time": float("nan")}), "undecodable"),
        (msgspec.msgpack.encode({"worker_id": "1", "wall_time": -1.0}), "undecodable"),
        (msgspec.msgpack.encode({"worker_id": "1", "wall_time": float("inf")}), "undecodable"),
        (msgspec.msgpack.encode({"worker_id": "1", "counter_id": -1}), "undecodable"),
        (encode_fpm(Fpm(worker_id="1" * 254, counter_id=1)), "invalid"),
    ],
)
def test_one_bad_fpm_spoils_only_itself(observer, payload, reason):
    letters = observer.handle(
        raw_batch("decode", 1.0, encode_fpm(busy("1", 1)), payload, encode_fpm(busy("2", 1))), 1.0
    )
    assert [(letter.reason, letter.item, letter.data) for letter in letters] == [(reason, 1, payload)]
    assert set(requests(observer, 1.0)) == {("1", 0), ("2", 0)}


def test_the_largest_ids_are_kept_exactly(observer):
    most = 2**64 - 1
    observer.handle(of(1.0, FpmItem(1.0, most, most, encode_fpm(busy(str(most), most)))), 1.0)
    assert set(requests(observer, 1.0)) == {(str(most), 0)}
    restored = FpmObserver({"decode": EngineModel()}, stale_after_s=10.0, max_skew_s=30.0)
    observer.learn()
    restored.load_state(msgspec.json.decode(msgspec.json.encode(observer.to_state())))
    restored.handle(of(1.0, FpmItem(1.0, most, most, encode_fpm(busy(str(most), most)))), 1.0)
    assert restored.counters.duplicate == 1


def test_a_flood_of_bad_fpms_gives_few_letters_and_says_how_many_more(observer):
    letters = observer.handle(raw_batch("decode", 1.0, *[b"\xc1"] * 500), 1.0)
    assert len(letters) == MAX_LETTERS
    assert letters[-1].message.endswith("436 more of this batch are not kept")
    assert "more of this batch" not in letters[0].message
    assert observer.counters.bad == 500


def test_made_up_worker_ids_do_not_fill_the_memory(observer):
    for start in range(0, MAX_RANKS + 500, 500):
        letters = observer.handle(batch("decode", 1.0, *(busy(str(i), 1) for i in range(start, start + 500))), 1.0)
    assert len(observer.ranks["decode"]) == MAX_RANKS
    assert (observer.counters.bad, letters[0].reason) == (500, "too_many_workers")


def test_a_role_that_is_not_planned_is_named_and_nothing_else(observer):
    for i in range(20):
        assert observer.handle(batch(f"encode{i}", 1.0, busy("1", 1)), 1.0) == []
    assert observer.foreign_roles == [f"encode{i}" for i in range(8)]


# clocks


YEARS = 1e8


@pytest.mark.parametrize("off", [YEARS, -YEARS, 31.0, -31.0])
def test_a_clock_that_is_far_off_is_not_believed(observer, off):
    at = YEARS * 2
    items = [FpmItem(at + off, 7, 1, encode_fpm(busy("1", 1)))]
    observer.handle(FpmBatch(dgd=DGD, role="decode", source="test", received_at=at, items=items), at)
    assert observer.counters.clock_skew == 1
    assert observer.newest_at("decode") == at


@pytest.mark.parametrize("off", [YEARS, -YEARS])
def test_a_source_whose_clock_is_far_off_is_not_believed_either(observer, off):
    now = YEARS * 2
    items = [FpmItem(now - 2.0, 7, 1, encode_fpm(busy("1", 1)))]
    observer.handle(FpmBatch(dgd=DGD, role="decode", source="test", received_at=now + off, items=items), now)
    assert observer.newest_at("decode") == now - 2.0


def test_where_engine_and_source_agree_on_the_past_the_fpm_is_late(observer):
    now = YEARS * 2
    observer.handle(of(now - 40.0, item(now - 41.0, 1, busy("1", 1))), now)
    assert (observer.counters.late, observer.counters.clock_skew) == (1, 0)
    assert requests(observer, now) == {}


def test_nobody_is_believed_about_the_future(observer):
    observer.handle(of(YEARS, item(YEARS, 1, busy("1", 1, 3))), 1.0)
    assert observer.newest_at("decode") == 1.0
    observer.handle(of(2.0, item(2.0, 2, busy("1", 2, 4))), 2.0)
    assert observer.newest_at("decode") == 2.0


def test_a_clock_ahead_does_not_silence_the_engine_afterwards(observer):
    observer.handle(of(1.0, FpmItem(1.0 + 29.0, 7, 1, encode_fpm(busy("1", 1, 3)))), 1.0)
    observer.handle(of(2.0, FpmItem(2.0, 7, 2, encode_fpm(busy("1", 2, 4)))), 2.0)
    assert requests(observer, 2.0) == {("1", 0): 4}


def test_a_batch_that_comes_late_is_counted_as_late(observer):
    observer.handle(of(1.0, item(1.0, 1, busy("1", 1))), 20.0)
    assert observer.counters.late == 1
    assert requests(observer, 20.0) == {}


# learning


def learned(observer: FpmObserver) -> int:
    observer.learn()
    return observer.models["decode"].samples(Kind.DECODE)


def test_the_first_passes_of_a_worker_teach_nothing(observer):  # case T12, dynamo#12430
    observer.handle(batch("decode", 1.0, *(busy("1", i) for i in range(1, FIRST_PASSES + 1))), 1.0)
    assert learned(observer) == 0
    observer.handle(batch("decode", 1.0, busy("1", FIRST_PASSES + 1)), 1.0)
    assert learned(observer) == 1


def test_heartbeats_do_not_use_up_the_first_passes(observer):
    observer.handle(batch("decode", 1.0, *(fpm("1", i) for i in range(1, 10)), busy("1", 10)), 1.0)
    assert learned(observer) == 0


def test_of_a_flood_a_part_is_learned_and_all_of_what_is_little(observer):
    for i in range(60):
        first = 1 + 100 * i
        observer.handle(batch("decode", 1.0, *(busy("1", c, 1 + c % 50) for c in range(first, first + 100))), 1.0)
    taught = learned(observer)
    assert ALL_OF < taught < ALL_OF + 2 * (6000 - ALL_OF) / 8
    observer.begin_tick(5.0)
    observer.handle(batch("decode", 6.0, *(busy("1", c) for c in range(7000, 7010))), 6.0)
    assert learned(observer) == taught + 10


@pytest.mark.parametrize("period", [2, 4, 7, 8, 16])
def test_what_is_learned_of_a_flood_keeps_no_step_with_the_engines(observer, period):
    """Every `period`-th iteration is another kind: its share among the learned ones is its share among all."""
    for i in range(160):
        first = 1 + 100 * i
        observer.handle(
            batch(
                "prefill",
                1.0,
                *(
                    fpm("1", c, wall=0.01, prefill=(1, 500)) if c % period else busy("1", c)
                    for c in range(first, first + 100)
                ),
            ),
            1.0,
        )
    observer.learn()
    model = observer.models["prefill"]
    share = model.samples(Kind.DECODE) / (model.samples(Kind.DECODE) + model.samples(Kind.PREFILL))
    assert share == pytest.approx(1 / period, rel=0.35)


def test_how_batches_are_cut_makes_no_difference(observer):
    other = FpmObserver({"decode": EngineModel(), "prefill": EngineModel()}, stale_after_s=10.0, max_skew_s=30.0)
    fpms = [busy("1", c, 1 + c % 40) for c in range(1, 3000)]
    for i in range(0, len(fpms), 97):
        observer.handle(batch("decode", 1.0, *fpms[i : i + 97]), 1.0)
    for i in range(0, len(fpms), 640):
        other.handle(batch("decode", 1.0, *fpms[i : i + 640]), 1.0)
    assert state(observer) == state(other)


def test_the_most_kv_that_a_rank_has_held_is_remembered(observer):
    lesson = [fpm("1", c, wall=0.01, decode=(1, kv)) for c, kv in enumerate((10, 10, 10, 700, 9000, 20), start=1)]
    observer.handle(batch("decode", 1.0, *lesson), 1.0)
    observer.learn()
    assert observer.rows["decode"].most_kv_tokens == 9000


def test_the_ranks_of_a_worker_are_counted_at_each_tick(observer):
    observer.handle(batch("decode", 1.0, *(busy("1", 1, rank=r) for r in range(4)), busy("2", 1)), 1.0)
    observer.begin_tick(1.0)
    assert observer.widths == {"decode": 4}
    observer.begin_tick(500.0)
    assert observer.widths == {"decode": 4}
