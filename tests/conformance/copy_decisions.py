"""Our copy of the reference's two loops: counts, reasons, estimates, floors."""

from conformance import Case, close, copies
from reference import floors, rates, said, seen_of, slot, state_of

from headrace.models.reference import load, throughput
from headrace.models.reference.forecast import Prediction

REL = 1e-5  # of estimates and rates, as both files say


@copies("05_load_scaling")
def load_scaling(case: Case) -> None:
    state = state_of(case.input)
    for tick, want in zip(case.input["ticks"], case.expected["ticks"], strict=True):
        state.note_rates(tick.get("kv_hit_rate"), tick.get("accept_length"))
        named = tick.get("floor") or {}
        state.floors.update({role: named[slot(role)] for role in state.floors if slot(role) in named})
        seen = seen_of(state.settings, tick)
        if tick["observe"]:
            for role, model in state.models.items():
                model.learn(seen.engines(role))
        decision = load.decide(state, seen)
        got = said(decision)
        assert got == {name: want[name] for name in got}
        assert close(decision.ttft_ms, want["estimated_ttft_ms"], rel=REL)
        assert close(decision.itl_ms, want["estimated_itl_ms"], rel=REL)


@copies("06_throughput_scaling")
def throughput_scaling(case: Case) -> None:
    state = state_of(case.input)
    for tick, want in zip(case.input["ticks"], case.expected["ticks"], strict=True):
        state.note_rates(tick.get("kv_hit_rate"), tick.get("accept_length"))
        prediction = Prediction(tick["num_req"], tick["isl"], tick["osl"])
        try:
            decision = throughput.decide(state, prediction, tick["duration_s"])
        except ValueError:
            assert want == {"error": "ValueError"}
            continue
        got = said(decision) | floors(state)
        assert got == {name: want[name] for name in got}
        for s, rate in rates(state, decision).items():
            assert close(rate, want[f"engine_rps_{s}"], rel=REL)
