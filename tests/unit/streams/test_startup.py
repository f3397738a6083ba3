"""How long it takes until what was decided serves."""

from world import ack

from headrace.schemas.decision import Causes
from headrace.streams.agents.ledger import Draft, Ledger
from headrace.streams.agents.startup import StartupTimer


def decide(ledger: Ledger, before: int, after: int, at: float):
    causes = Causes(tick=1)
    return ledger.issue(Draft({"decode": after}, {"decode": before}, {}, causes, advisory=False), at)


def scaled(ledger: Ledger, timer: StartupTimer, counts: tuple[int, int], at: float, took: float, status="applied"):
    decision = decide(ledger, *counts, at)
    timer.look(ledger)
    ledger.settle(ack(decision, at + took, status), at + took)
    timer.look(ledger)
    timer.look(ledger)


def test_it_runs_from_the_decision_to_the_word_that_it_is_applied():
    ledger, timer = Ledger("ml/llama", 1800.0), StartupTimer()
    assert timer.seconds is None
    scaled(ledger, timer, (1, 3), 100.0, 90.0)
    assert timer.seconds == 90.0


def test_later_ones_count_half_and_each_once():
    ledger, timer = Ledger("ml/llama", 1800.0), StartupTimer()
    scaled(ledger, timer, (1, 3), 100.0, 90.0)
    scaled(ledger, timer, (3, 4), 500.0, 30.0)
    assert timer.seconds == 60.0


def test_what_shrinks_or_fails_measures_nothing():
    ledger, timer = Ledger("ml/llama", 1800.0), StartupTimer()
    scaled(ledger, timer, (3, 1), 100.0, 5.0)
    scaled(ledger, timer, (1, 3), 200.0, 700.0, status="failed")
    assert timer.seconds is None


def test_it_is_remembered():
    ledger, timer, other = Ledger("ml/llama", 1800.0), StartupTimer(), StartupTimer()
    scaled(ledger, timer, (1, 3), 100.0, 90.0)
    other.load_state(timer.to_state())
    other.look(ledger)
    assert other == timer
