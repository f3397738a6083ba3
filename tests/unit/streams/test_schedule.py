"""When ticks are due, and what runs in them."""

import pytest

from headrace.schemas.config import planner_config
from headrace.streams.agents.schedule import Schedule

EPOCH = 1_796_086_500.0  # seconds since 1970, of this decade


def config(load=None, throughput=None, **more):
    raw = {"optimization_target": "sla", "enable_load_scaling": load is not None}
    raw["enable_throughput_scaling"] = throughput is not None
    if load is not None:
        raw["load_adjustment_interval_seconds"] = load
    if throughput is not None:
        raw["throughput_adjustment_interval_seconds"] = throughput
    return planner_config(raw | more)


@pytest.mark.parametrize(
    ("load", "throughput", "base"),
    [(5, 180, 5.0), (7, 180, 1.0), (5, None, 5.0), (None, 180, 180.0), (0.5, 1.75, 0.25), (2.5, 10, 2.5)],
)
def test_the_base_tick_is_the_greatest_common_divisor_of_the_enabled_intervals(load, throughput, base):
    assert config(load, throughput).base_tick_seconds == base


@pytest.mark.parametrize("anchor", [0.0, EPOCH])
def test_a_thousand_ticks_that_come_late_neither_drift_nor_miss_a_loop(anchor):  # case T24, dynamo#11784
    schedule = Schedule.of(config(5, 180), anchor)
    for i in range(1, 1001):
        assert schedule.next_at == anchor + 5 * i
        due_at, loops = schedule.begin(anchor + 5 * i + 0.003)
        assert due_at == anchor + 5 * i
        assert loops == (["load", "throughput"] if i % 36 == 0 else ["load"])


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.7, 1.1, 0.25, 0.001 * 17])
@pytest.mark.parametrize("anchor", [0.0, EPOCH, EPOCH + 0.123])
def test_fractional_intervals_run_in_every_slot(seconds, anchor):
    schedule = Schedule.of(config(seconds, None), anchor)
    for _ in range(2000):
        now = schedule.next_at
        assert schedule.due(now)
        assert not schedule.due(now - seconds / 2)
        assert schedule.begin(now)[1] == ["load"]
    assert schedule.tick == 2000


def test_intervals_that_share_no_second_run_in_their_own_slots():
    schedule = Schedule.of(config(7, 180), 0.0)
    ran = {"load": [], "throughput": []}
    for _ in range(360):
        now = schedule.next_at
        for loop in schedule.begin(now)[1]:
            ran[loop].append(now)
    assert ran == {"load": [7.0 * i for i in range(1, 52)], "throughput": [180.0, 360.0]}


def test_missed_ticks_run_once():
    schedule = Schedule.of(config(5, 180), 0.0)
    schedule.begin(5.0)
    due_at, loops = schedule.begin(1003.0)
    assert (due_at, loops, schedule.next_at) == (1000.0, ["load", "throughput"], 1005.0)


def test_a_clock_that_went_back_makes_nothing_due_until_it_has_caught_up():
    schedule = Schedule.of(config(5, None), 0.0)
    schedule.begin(100.0)
    assert not schedule.due(50.0)
    assert not schedule.due(100.0)
    assert not schedule.due(104.9)
    assert schedule.due(105.0)


@pytest.mark.parametrize("back", [70.0, 3600.0, 1e9])
def test_a_clock_that_was_set_back_is_not_waited_for(back):
    schedule = Schedule.of(config(5, 180), 0.0)
    schedule.begin(EPOCH + back)
    assert schedule.resume(EPOCH)
    assert EPOCH < schedule.next_at <= EPOCH + 5
    assert not schedule.due(EPOCH)
    assert schedule.begin(schedule.next_at)[1] == ["load"]
    assert not schedule.resume(EPOCH)


def test_a_clock_far_before_the_anchor_gives_no_negative_tick():
    schedule = Schedule.of(config(5, None), 1000.0)
    schedule.begin(2000.0)
    assert schedule.resume(0.0)
    assert (schedule.tick, schedule.next_at) == (0, 1005.0)


def test_a_timer_that_fires_a_hair_early_is_on_time():
    assert Schedule.of(config(5, None), 0.0).due(5.0 - 1e-7)


@pytest.mark.parametrize(("before", "after"), [((5, 180), (1, 180)), ((1, 180), (60, 180)), ((5, 180), (5, 60))])
def test_other_intervals_go_on_from_the_same_moment(before, after):
    schedule = Schedule.of(config(*before), 0.0)
    while schedule.next_at <= 1000.0:
        schedule.begin(schedule.next_at)
    new = schedule.reconfigured(config(*after))
    last = schedule.tick * schedule.base_s
    assert last < new.next_at <= last + new.base_s
    assert new.begin(new.next_at)[1][:1] == ["load"]


def test_a_reconfiguration_repeats_no_loop():
    schedule = Schedule.of(config(5, 180), 0.0)
    for _ in range(36):
        schedule.begin(schedule.next_at)
    new = schedule.reconfigured(config(1, 180))
    assert [new.begin(new.next_at)[1] for _ in range(2)] == [["load"], ["load"]]


def test_a_reconfiguration_before_the_first_tick_begins_at_the_anchor():
    assert Schedule.of(config(5, 180), 100.0).reconfigured(config(2, 180)).next_at == 102.0


def test_state_comes_back_as_it_was():
    schedule = Schedule.of(config(5, 180), EPOCH)
    schedule.begin(EPOCH + 185.0)
    assert Schedule.from_state(schedule.to_state()) == schedule
