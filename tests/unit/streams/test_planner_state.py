"""Snapshots: what is restored behaves as what was saved."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from world import DGD, Stage, fpm, held, prediction, proposal, queued

from headrace.schemas.codec import encode
from headrace.schemas.config import planner_config
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.errors import StateError
from headrace.schemas.fpm import encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.streams.planner import STATE_VERSION, Planner


def restored(planner: Planner, **kwargs: object) -> Planner:
    return Planner.restore(planner.snapshot(), **kwargs)


@pytest.fixture
def stage() -> Stage:
    return Stage.of(mode="disagg", enable_load_scaling=True, load_predictor="kalman").teach()


def live(stage: Stage, i: int) -> list[bytes]:
    """Five seconds of a deployment whose load comes and goes."""
    at, wave = 5.0 * i, abs(i % 40 - 20)
    stage.traffic(at - 5, at, 40 * wave if i % 11 else None, kv_hit_rate=0.1 * (i % 5) if i % 3 else None)
    stage.fleet(at - 1, prefill=2 + i % 3, decode=3)
    stage.engines("prefill", at - 1, *[queued(300 * wave) | {"wall": 0.01, "prefill": (1, 100 + i)}] * 4)
    stage.engines("decode", at - 1, *[held(1500 * wave) | {"wall": 0.006}] * 3)
    if i % 17 == 0:
        stage.give(proposal("AT_LEAST", at=at, until=at + 30, proposal_id=str(i), decode=4), at)
    if i % 23 == 0:
        stage.give(prediction(30.0, at, expires_at=at + 200), at)
    said = stage.tick()
    if said.decision is not None and i % 4:
        stage.apply(said, at + 2, "applied" if i % 8 else "rejected")
    return [encode(record) for record in said.records]


HISTORY = """
import hashlib, sys
from test_planner_state import Stage, live
stage = Stage.of(mode="disagg", enable_load_scaling=True, load_predictor="kalman").teach()
said = b"".join(record for i in range(1, 120) for record in live(stage, i))
print(hashlib.sha256(said + stage.planner.snapshot()).hexdigest())
"""


def test_another_process_says_the_same_bytes():
    places = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    digests = set()
    for seed in ("1", "2"):  # of the order of sets and of string hashes
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": places}
        ran = subprocess.run(
            [sys.executable, "-c", HISTORY], env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        digests.add(ran.stdout)
    assert len(digests) == 1


@pytest.mark.parametrize("every", [1, 7])
def test_a_planner_that_is_restored_now_and_then_says_the_same_bytes(stage, every):
    other = Stage(restored(stage.planner), dict(stage.counters))
    decisions = 0
    for i in range(1, 120):
        if i % every == 0:
            other.planner = restored(other.planner)
        said = live(stage, i)
        assert live(other, i) == said
        decisions += any(b"headrace.decision" in record for record in said)
    assert decisions > 5
    assert other.planner.snapshot() == stage.planner.snapshot()


def test_saving_changes_nothing(stage):
    other = Stage(restored(stage.planner), dict(stage.counters))
    for i in range(1, 60):
        other.planner.snapshot()
        assert live(other, i) == live(stage, i)


def test_a_snapshot_of_a_snapshot_is_the_same(stage):
    for i in range(1, 50):
        live(stage, i)
    assert restored(stage.planner).snapshot() == stage.planner.snapshot()


def test_under_another_configuration_what_was_learned_stays(stage):
    for i in range(1, 50):
        live(stage, i)
    config = planner_config(
        {
            "optimization_target": "sla",
            "enable_load_scaling": True,
            "load_adjustment_interval_seconds": 60,
            "load_predictor": "constant",
        }
    )
    other = restored(stage.planner, config=config)
    assert other.config == config
    assert other.ledger == stage.planner.ledger
    assert other.models["decode"].revision == stage.planner.models["decode"].revision
    assert 245.0 < other.next_tick_at <= 300.0


@pytest.mark.parametrize(("before", "after"), [(5, 60), (60, 5), (5, 1)])
def test_another_interval_goes_on_from_the_same_moment(before, after):
    def config(seconds: float) -> dict[str, object]:
        return {"load_adjustment_interval_seconds": seconds, "optimization_target": "latency"}

    planner = Planner(planner_config(config(before)), DGD)
    planner.tick(1_796_086_560.0)
    other = restored(planner, config=planner_config(config(after)))
    assert 1_796_086_560.0 < other.next_tick_at <= 1_796_086_560.0 + after


def test_a_revision_from_the_log_stays_in_force_over_the_configuration_at_start(stage):
    revised = msgspec.to_builtins(stage.planner.config) | {"min_endpoint": 3}
    stage.give(ConfigRevision(dgd=DGD, revision=4, at=1.0, config=revised), 1.0)
    other = restored(stage.planner, config=planner_config({"optimization_target": "sla"}))
    assert (other.config.min_endpoint, other.config_revision) == (3, 4)
    assert other.notes == ["configuration revision 4 is in force, not the one that was given at start"]


def test_another_mode_at_start_overrules_a_revision(stage):
    revised = msgspec.to_builtins(stage.planner.config) | {"min_endpoint": 3}
    stage.give(ConfigRevision(dgd=DGD, revision=4, at=1.0, config=revised), 1.0)
    agg = planner_config({"mode": "agg", "optimization_target": "latency"})
    other = restored(stage.planner, config=agg)
    assert (other.config, other.config_revision) == (agg, 4)
    other.tick(5.0)


def test_ids_of_any_size_survive(stage):
    most = 2**64 - 1
    item = FpmItem(1.0, most, most, encode_fpm(fpm(str(most), most, rank=3)))
    stage.give(FpmBatch(dgd=DGD, role="decode", source="test", received_at=1.0, items=[item]), 1.0)
    assert restored(stage.planner).snapshot() == stage.planner.snapshot()


def damaged() -> dict[str, bytes]:
    whole = Stage.load(mode="decode").teach().planner.snapshot()
    state = msgspec.json.decode(whole)

    def changed(**parts: object) -> bytes:
        return msgspec.json.encode(state | parts)

    return {
        "nothing": b"",
        "garbage": b"\xff\x00",
        "half": whole[: len(whole) // 2],
        "no state": b"[1, 2]",
        "null": b"null",
        "another version": changed(version=STATE_VERSION + 1),
        "no version": msgspec.json.encode({k: v for k, v in state.items() if k != "version"}),
        "no ledger": msgspec.json.encode({k: v for k, v in state.items() if k != "ledger"}),
        "odd ledger": changed(ledger=7),
        "odd models": changed(models={"decode": {}}),
        "odd configuration": changed(config={"ttft_ms": -1}),
        "odd ranks": changed(fpm=state["fpm"] | {"ranks": {"decode": [[1]]}}),
        "odd schedule": changed(schedule={"base_s": "x"}),
        "odd forecast": changed(forecast=[]),
    }


@pytest.mark.parametrize("name", sorted(damaged()))
def test_a_damaged_snapshot_is_a_state_error(name):
    with pytest.raises(StateError):
        Planner.restore(damaged()[name])
