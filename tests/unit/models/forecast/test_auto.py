"""auto: members weighed by what came, the last value as the yardstick, quantiles from its own errors."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from headrace.models.forecast.auto import Auto
from headrace.models.forecast.base import steps_ahead
from headrace.models.forecast.constant import Constant
from headrace.models.forecast.evaluate import replay, score
from headrace.models.forecast.fitting import FitResult
from headrace.models.forecast.mixture import DOUBT, TRUST, Mixture
from headrace.models.forecast.spread import FEWEST, Spread
from headrace.schemas.errors import ConfigError, StateError
from headrace.streams.runtime.recorded_load import read_series

LIGHT = ("smooth", "seasonal", "kalman")
STARTUPS_S = (30.0, 60.0, 180.0)


def fed(values: list[float], members: tuple[str, ...] = LIGHT) -> Auto:
    auto = Auto(members=members)
    for value in values:
        auto.observe(value)
    return auto


def vs_last(values: list[float], horizons: list[int]) -> dict[int, float]:
    """Errors beside those of the last value."""
    ours, last = replay(Auto(members=LIGHT), values, horizons), replay(Constant(), values, horizons)
    return {h: score(values, ours[h], h).wape / score(values, last[h], h).wape for h in horizons}


RECORDED = {
    "rates/servegen_m-large_rate_10min.csv": (None,),
    "rates/servegen_m-small_rate_10min.csv": (None,),
    "rates/servegen_mm-image_rate_10min.csv": (None,),
    "traces/azure_llm_2023_conv.csv": (10.0, 60.0, 180.0),
    "traces/mooncake_conversation.jsonl.gz": (10.0, 60.0, 180.0),
}


@pytest.mark.shared
@pytest.mark.parametrize(("file", "interval_s"), [(f, i) for f, intervals in RECORDED.items() for i in intervals])
def test_it_is_at_least_as_good_as_the_last_value_on_recorded_load(shared: Path, file, interval_s):
    series = read_series(shared / "data" / file, interval_s)
    horizons = sorted({1, *(steps_ahead(s, series.interval_s) for s in STARTUPS_S)})
    assert max(vs_last(list(series.values), horizons).values()) <= 1.0


@pytest.mark.parametrize("seed", range(3))
def test_it_is_never_much_worse_than_the_last_value_on_a_random_walk(seed):
    walk = np.maximum(0, 300 + np.random.default_rng(seed).normal(size=400).cumsum() * 5)
    assert max(vs_last([float(v) for v in walk], [1, 4, 18]).values()) < 1.03


def test_noise_around_a_level_is_smoothed():
    rng = np.random.default_rng(4)
    assert max(vs_last([float(v) for v in rng.poisson(50, 300)], [1, 4, 18]).values()) < 0.85


def test_a_season_is_followed():
    values = [100 + 80 * math.sin(n * 2 * math.pi / 48) for n in range(600)]
    assert vs_last(values, [16])[16] < 0.35


def test_a_ramp_is_followed():
    assert vs_last([10 + 2.0 * n for n in range(200)], [4])[4] < 0.35


def test_it_begins_as_the_last_value():
    for n in range(1, 6):
        values = [10.0, 30.0, 20.0, 60.0, 40.0][:n]
        assert fed(values).forecast() == values[-1]


def test_shares_sum_to_one_and_are_of_named_members():
    shares = fed([50.0 + n % 5 for n in range(80)]).shares(3)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert {"constant", "seasonal", "kalman", "smooth 0.2"} <= shares.keys()


def test_a_mixture_is_not_trusted_before_it_has_won_something():
    mixture = Mixture(np.zeros(3))
    assert TRUST < DOUBT
    assert mixture.trust() == 0.0
    for _ in range(10):  # the last value is right, the mixture is not
        mixture.learn(10.0, 10.0, np.array([10.0, 12.0, 14.0]), 13.0)
        mixture.learn(11.0, 10.5, np.array([10.5, 12.0, 14.0]), 13.0)
    assert mixture.trust() == 0.0
    assert mixture.weights()[0] > 0.9


def test_a_mixture_that_turns_bad_is_left_within_a_few_values():
    mixture = Mixture(np.zeros(2))
    for _ in range(300):
        mixture.learn(10.0, 8.0, np.array([8.0, 10.0]), 10.0)
    assert mixture.trust() > 0.99
    bad = 0
    while mixture.trust() > 0:
        mixture.learn(10.0, 10.0, np.array([10.0, 14.0]), 14.0)
        bad += 1
    assert bad < 10


def test_quantiles_hold_what_they_promise():
    rng = np.random.default_rng(5)
    auto, below, asked = fed([float(v) for v in rng.poisson(100, 100)]), [0, 0], 0
    for value in rng.poisson(100, 400):
        for n, quantile in enumerate(auto.quantiles((0.5, 0.9))):
            below[n] += value <= quantile
        asked += 1
        auto.observe(float(value))
    assert below[0] / asked == pytest.approx(0.5, abs=0.07)
    assert below[1] / asked == pytest.approx(0.9, abs=0.04)


def test_quantiles_rise_with_their_level_and_are_unknown_before_there_are_errors():
    assert fed([1.0] * FEWEST).quantiles((0.9,)) is None
    low, middle, high = fed([50.0 + 10 * math.sin(n * n) for n in range(60)]).quantiles((0.1, 0.5, 0.9), steps=3)
    assert 0 <= low < middle < high


@pytest.mark.parametrize("level", [-0.1, 1.1, math.nan])
def test_a_level_that_is_no_probability_is_refused(level):
    with pytest.raises(ValueError, match="probabilities"):
        Spread().quantiles((level,), 1, 5.0, 10.0)


def test_errors_grow_with_the_load():
    spread = Spread()
    for n in range(50):
        spread.learn(0, 110.0 if n % 2 else 90.0, 100.0, 100.0)
    assert spread.quantiles((0.9,), 1, 100.0, 100.0) == pytest.approx((110.0,))
    assert spread.quantiles((0.9,), 1, 1000.0, 1000.0) == pytest.approx((1100.0,))


def test_fits_of_members_go_out_and_come_back_by_their_kind():
    auto = Auto(members=("smooth", "arima", "prophet"))
    auto.inline = False
    for n in range(60):
        auto.observe(100 + 30 * math.sin(n / 5) + n % 7)
    assert [job.kind for job in auto.fit_jobs()] == ["arima", "prophet"]
    last = 100 + 30 * math.sin(59 / 5) + 59 % 7
    assert auto.take_fit(FitResult("prophet", 60, last, {"path": [1.0] * 100}))
    assert [job.kind for job in auto.fit_jobs()] == ["arima"]
    assert not auto.take_fit(FitResult("oracle", 60, last, {}))


def test_members_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr("headrace.models.forecast.extras.find_spec", lambda name: None)
    assert [name for name in Auto().shares() if not name.startswith("smooth")] == ["constant", "seasonal"]
    with pytest.raises(ConfigError, match=r"pip install headrace\[arima\]"):
        Auto(members=("arima",))


def test_an_unknown_member_is_refused():
    with pytest.raises(ConfigError, match="'oracle' of 'auto' is unknown: use smooth"):
        Auto(members=("oracle",))


@pytest.mark.parametrize("damage", [{"mixtures": []}, {"waiting": ["?"] * 3}, {"spread": ["", ""]}, {"members": []}])
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    auto = fed([5.0 + n % 3 for n in range(30)])
    before = json.loads(json.dumps(auto.to_state()))
    with pytest.raises(StateError, match="auto"):
        auto.load_state(before | damage)
    assert auto.to_state() == before


def test_a_state_with_a_damaged_member_is_refused_and_changes_nothing():
    auto = fed([5.0 + n % 3 for n in range(30)])
    before = json.loads(json.dumps(auto.to_state()))
    damaged = json.loads(json.dumps(fed([9.0] * 20).to_state()))
    damaged["members"]["kalman"]["x"] = None
    with pytest.raises(StateError, match="kalman"):
        auto.load_state(damaged)
    assert auto.to_state() == before


def test_a_state_of_other_members_is_refused():
    with pytest.raises(StateError, match="members"):
        Auto(members=("smooth",)).load_state(fed([1.0, 2.0]).to_state())
