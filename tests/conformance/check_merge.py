"""Merging opinions about a count, and predictions about the load."""

from collections.abc import Mapping, Sequence
from typing import Any

from conformance import Case, checks

from headrace.models.scaling.merge import Bound, Merged, merge, rejection
from headrace.schemas.config import planner_config
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal, ProposalKind
from headrace.schemas.reasons import Reason
from headrace.streams.agents.forecast import ForecastAgent

FINAL = "Nobody has the last word"
FIRST_REJECT = "The most important rejection is named"
ONE_LIST = "Opinions have no order"

DGD = "ns/name"
DIRECTIONS = {"floor": Reason.CLAMPED_TO_FLOOR, "ceiling": Reason.CLAMPED_TO_CEILING}


@checks("08_merge")
def merged(case: Case) -> str | None:
    """Priorities tie by proposal id here, and there by the place in a list: so the ids are the places."""
    plugins, want = case.input["plugins"], case.expected
    proposals = [
        p for place, plugin in enumerate(plugins) for p in _proposals(place, plugin, case.input["set_allowed"])
    ]
    reject = rejection(proposals)
    assert (reject is not None) == want["short_circuited"]
    if reject is not None:
        if f"{reject.source}: {reject.reason}" == want["short_circuit_reason"]:
            return None
        assert reject.priority == min(p["priority"] for p in plugins if p["kind"] == "reject")
        return FIRST_REJECT
    ours = {role: merge(role, case.input["baseline"].get(role, 0), proposals) for role in _roles(case)}
    if want["used_final_from"]:
        return _without_a_last_word(case, {role: m.replicas for role, m in ours.items()})
    assert {role: m.replicas for role, m in ours.items()} == {t["component"]: t["replicas"] for t in want["targets"]}
    named = {(role, bound.rule, bound.proposal.source) for role, m in ours.items() for bound in _net(m)}
    wanted = {(c["component"], DIRECTIONS[c["direction"]], c["plugin"]) for c in want["clamped"]}
    if named == wanted:
        return None
    assert {n[:2] for n in named} == {w[:2] for w in wanted}
    _bound_alike(case, ours)
    return ONE_LIST


def _net(merged: Merged) -> list[Bound]:
    """The bound that the reference names: of the direction in which the count moved on the whole; ours lists all."""
    if not merged.bounds:
        return []
    moved = merged.replicas - merged.bounds[0].before
    rule = Reason.CLAMPED_TO_FLOOR if moved > 0 else Reason.CLAMPED_TO_CEILING
    return [bound for bound in merged.bounds if moved and bound.rule is rule]


def _bound_alike(case: Case, ours: Mapping[str, Merged]) -> None:
    """Two plugins named the same bound; either is right."""
    by_id = {plugin["id"]: plugin for plugin in case.input["plugins"]}
    for clamp in case.expected["clamped"]:
        kind = "AT_LEAST" if clamp["direction"] == "floor" else "AT_MOST"
        theirs = by_id[clamp["plugin"]]
        values = [
            t["replicas"] for t in theirs["targets"] if t["component"] == clamp["component"] and t["type"] == kind
        ]
        assert _net(ours[clamp["component"]])[-1].after in values


def _without_a_last_word(case: Case, ours: Mapping[str, int]) -> str:
    """A `final` opinion is one among others: every bound that anybody set holds, but that a floor beats a ceiling."""
    for role, replicas in ours.items():
        bounds = {"AT_LEAST": [0], "AT_MOST": [10**9]}
        for plugin in case.input["plugins"]:
            for t in plugin.get("targets", []):
                if t["component"] == role and t["type"] in bounds:
                    bounds[t["type"]].append(t["replicas"])
        floor, ceiling = max(bounds["AT_LEAST"]), min(bounds["AT_MOST"])
        assert replicas >= floor
        assert replicas <= max(floor, ceiling)
    return FINAL


def _roles(case: Case) -> list[str]:
    named = [t["component"] for plugin in case.input["plugins"] for t in plugin.get("targets", [])]
    if not case.input["set_allowed"]:  # a SET there is dropped, and so does not name a component
        named = [
            t["component"] for plugin in case.input["plugins"] for t in plugin.get("targets", []) if t["type"] != "SET"
        ]
    return list(dict.fromkeys([*named, *case.input["baseline"]]))


def _proposals(place: int, plugin: Mapping[str, Any], set_allowed: bool) -> list[Proposal]:
    """A plugin says several things at once; a proposal says one. Where SET is not allowed none is published."""
    common = {"dgd": DGD, "source": plugin["id"], "issued_at": 0.0, "expires_at": 1.0, "priority": plugin["priority"]}
    if plugin["kind"] == "reject":
        return [Proposal(proposal_id=f"{place:03}", kind=ProposalKind.REJECT, reason=plugin["reason"], **common)]
    return [
        Proposal(
            proposal_id=f"{place:03}-{number:03}",
            kind=ProposalKind[t["type"]],
            targets={t["component"]: t["replicas"]},
            **common,
        )
        for number, t in enumerate(plugin.get("targets", []))
        if t.get("replicas") is not None and (set_allowed or t["type"] != "SET")
    ]


@checks("08_predict_chain")
def chained(case: Case) -> str | None:
    plugins = case.input["plugins"]
    best = _best([p for p in plugins if p["prediction"] is not None])
    want = case.expected["prediction"]
    found = None if best is None else {name: getattr(best, ours) for name, ours in _OPINIONS.items()}
    if want is None:
        assert found is None
        return None
    want = {name: want[name] for name in _OPINIONS}
    if found == want:
        assert best is not None
        assert not case.expected["prediction"]["source"] or best.source == case.expected["prediction"]["source"]
        return None
    assert case.expected["final_from"]
    assert found is not None
    silenced = {name for name in want if want[name] is None and found[name] is not None}
    assert silenced == {name for name in want if found[name] != want[name]}
    return FINAL


_OPINIONS = {
    "predicted_num_req": "requests_per_s",  # in windows of one second
    "predicted_isl": "isl",
    "predicted_osl": "osl",
    "predicted_kv_hit_rate": "kv_hit_rate",
    "predicted_accept_length": "accept_length",
}


def _best(plugins: Sequence[Mapping[str, Any]]) -> Prediction | None:
    agent = ForecastAgent(planner_config({"load_predictor": "constant"}))
    for place, plugin in enumerate(plugins):
        said = plugin["prediction"]
        agent.handle(_prediction(plugin["id"], plugin["priority"], said, float(place)), now=100.0)
    silent = _prediction("headrace.none", 10_000, {}, 0.0)
    return agent.best(silent, now=100.0)


def _prediction(source: str, priority: int, said: Mapping[str, Any], made_at: float) -> Prediction:
    return Prediction(
        dgd=DGD,
        prediction_id="p",
        source=source,
        made_at=made_at,
        expires_at=1000.0,
        requests_per_s=said.get("num_req"),
        isl=said.get("isl"),
        osl=said.get("osl"),
        kv_hit_rate=said.get("kv_hit_rate"),
        accept_length=said.get("accept_length"),
        priority=priority,
    )
