"""The decode load of aggregated engines: averaged by time, each worker for itself."""

import msgspec
import pytest
from world import batch, fpm

from headrace.models.perf.engine import EngineModel
from headrace.streams.agents.fpm import FpmObserver
from headrace.streams.agents.view import engine_load

IDLE = fpm("1", 99)


@pytest.fixture
def observer() -> FpmObserver:
    return FpmObserver({"agg": EngineModel(), "decode": EngineModel()}, 10.0, 30.0)


def loads(observer: FpmObserver, now: float, role: str = "agg") -> dict[str, tuple[float, float]]:
    """By worker: requests that decode and their KV tokens, as a tick sees them."""
    observer.begin_tick(now)
    found = {}
    for key, newest in observer.fresh(role, now, None).items():
        load = engine_load(newest, observer.mean(role, key))
        found[key[0]] = (load.scheduled_decode_requests, load.scheduled_decode_kv_tokens)
    return found


def test_an_iteration_counts_by_its_time(observer):
    """A chunk of prefill takes 30 ms beside 4 requests, a plain iteration 10 ms beside 2: (30 x 4 + 10 x 2) / 40."""
    long = fpm("1", 1, wall=0.03, prefill=(1, 2048), decode=(4, 4000))
    observer.handle(batch("agg", 1.0, long, fpm("1", 2, wall=0.01, decode=(2, 2000))), 1.0)
    assert loads(observer, 5.0) == {"1": (pytest.approx(3.5), pytest.approx(3500))}


def test_a_busy_worker_does_not_speak_for_a_quiet_one(observer):
    busy = [fpm("1", i, wall=0.03, decode=(60, 60_000)) for i in range(1, 50)]
    observer.handle(batch("agg", 1.0, *busy, fpm("2", 1, wall=0.01, decode=(2, 2000))), 1.0)
    assert loads(observer, 5.0) == {"1": (pytest.approx(60), pytest.approx(60_000)), "2": (2, 2000)}


def test_each_interval_is_averaged_anew(observer):
    observer.handle(batch("agg", 1.0, fpm("1", 1, wall=0.01, decode=(60, 60_000))), 1.0)
    loads(observer, 5.0)
    observer.handle(batch("agg", 6.0, fpm("1", 2, wall=0.01, decode=(2, 2000))), 6.0)
    assert loads(observer, 10.0) == {"1": (2, 2000)}


def test_without_an_iteration_in_the_interval_the_newest_counts(observer):
    for i, n in enumerate((2, 4), start=1):
        observer.handle(batch("agg", 1.0, fpm("1", i, wall=0.01, decode=(n, 1000 * n))), 1.0)
    loads(observer, 5.0)
    assert loads(observer, 10.0) == {"1": (4, 4000)}


def test_an_engine_whose_newest_word_is_a_heartbeat_is_idle(observer):
    observer.handle(batch("agg", 1.0, fpm("1", 1, wall=0.01, decode=(2, 2000)), IDLE), 1.0)
    assert loads(observer, 5.0) == {"1": (0, 0)}


def test_other_roles_are_judged_by_their_newest_iteration(observer):
    two = [fpm("1", i, wall=0.01 * i, decode=(2 * i, 2000 * i)) for i in (1, 2)]
    observer.handle(batch("decode", 1.0, *two), 1.0)
    assert loads(observer, 5.0, "decode") == {"1": (4, 4000)}


def test_what_waits_is_what_waits_now(observer):
    for i, tokens in enumerate((9000, 100), start=1):
        one = fpm("1", i, wall=0.01, decode=(1, 1000), queued_prefill=(1, tokens))
        observer.handle(batch("agg", 1.0, one), 1.0)
    observer.begin_tick(5.0)
    ((key, newest),) = observer.fresh("agg", 5.0, None).items()
    assert engine_load(newest, observer.mean("agg", key)).queued_prefill_tokens == 100


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_snapshot_in_the_middle_of_an_interval_changes_nothing(observer, at):
    again, said = observer, [fpm("1", i, wall=0.01 * i, decode=(i, 700 * i)) for i in range(1, 5)]
    whole = FpmObserver({"agg": EngineModel(), "decode": EngineModel()}, 10.0, 30.0)
    for i, one in enumerate(said):
        whole.handle(batch("agg", 1.0, one), 1.0)
        again.handle(batch("agg", 1.0, one), 1.0)
        if i == at:
            again.learn()
            state = msgspec.json.decode(msgspec.json.encode(again.to_state()))
            again = FpmObserver({"agg": EngineModel(), "decode": EngineModel()}, 10.0, 30.0)
            again.load_state(state)
    assert loads(again, 5.0) == loads(whole, 5.0)
