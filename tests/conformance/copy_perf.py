"""Our copy of the reference's engine model, and of the regressions that it had before."""

from conformance import Case, copies
from reference import Row, fpm_of, learning_of, model_of, same

from headrace.models.reference.capacity import Demand, find_capacity
from headrace.models.reference.engine import check, work_of
from headrace.models.reference.older import DecodeDemand, OlderDecode, OlderPrefill
from headrace.models.reference.older_agg import AggDemand, OlderAgg
from headrace.models.reference.perf import Asked, PerfModel
from headrace.schemas.base import AGG
from headrace.schemas.errors import RecordError

Older = OlderPrefill | OlderDecode | OlderAgg


@copies("02_perf_model_rust")
def perf_model(case: Case) -> None:
    role = {"aggregated": AGG}.get(case.input["worker_type"], case.input["worker_type"])
    model, want = model_of(case.input, role), case.expected
    assert model.times.observations == want["num_observations"]
    assert model.ready == want["has_sufficient_data"]
    assert same(case, model.isl.mean, want["avg_isl"])
    assert same(case, model.decode_length.mean, want["avg_decode_length"])
    for row in want["forward_pass_s"]:
        assert same(case, _forward_pass_s(model, row), row.get("s")), row
    for part, ask in (("queued_prefill_time", model.ttft_s), ("scheduled_decode_itl", model.itl_s)):
        for row in want[part]:
            named = {key: value for key, value in row.items() if key not in ("fpm", "s", "note")}
            assert same(case, ask(fpm_of(row["fpm"]), Asked(**named)), row["s"]), row
    for row in want["capacity"]:
        assert_capacity(case, model, row)


def _forward_pass_s(model: PerfModel, row: Row) -> float | None:
    """None for an FPM that is refused, which a row says by having no answer."""
    fpm = fpm_of(row["fpm"])
    try:
        check(fpm)
    except RecordError:
        assert "error" in row
        return None
    assert "error" not in row
    ns = model.times.time_ns(work_of(fpm))
    return None if ns is None else ns / 1e9


def assert_capacity(case: Case, model: PerfModel, row: Row) -> None:
    want = row["capacity"]
    got = find_capacity(
        model,
        Demand(
            row["isl"],
            row["osl"],
            row.get("ttft_sla_ms"),
            row.get("itl_sla_ms"),
            row.get("kv_hit_rate"),
            row.get("accept_length"),
        ),
    )
    assert (got is None) == (want is None), row
    if got is None:
        return
    assert got.eligible == want["eligible"]
    assert same(case, got.requests_per_s, want["rps"]), row
    assert same(case, got.ttft_ms, want["ttft_ms"]), row
    assert same(case, got.itl_ms, want["itl_ms"]), row
    assert same(case, got.e2e_ms, want["e2e_latency_ms"]), row


@copies("02_perf_model_rust_eviction")
def eviction(case: Case) -> None:
    """Where the reference forgets by chance, within what it was seen to answer."""
    model, want = model_of(case.input, "prefill"), case.expected
    assert model.times.observations == want["num_observations"]
    ns = model.times.time_ns(work_of(fpm_of(case.input["query"])))
    assert ns is not None
    rel = case.tolerance["rel"]
    assert want["forward_pass_s_min"] * (1 - rel) <= ns / 1e9 <= want["forward_pass_s_max"] * (1 + rel)


@copies("02_regression_prefill")
def older_prefill(case: Case) -> None:
    model = OlderPrefill(learning_of(case.input))
    _older(case, model)
    assert same(case, model.isl.mean, case.expected["avg_isl"])
    for row in case.expected["ttft"]:
        got = model.ttft_s(row["queued_prefill_tokens"], row["max_num_batched_tokens"], row["kv_hit_rate"])
        assert same(case, got, row["ttft_s"]), row
    for row in case.expected["capacity"]:
        rate, ttft_ms = model.capacity(row["isl"], row["max_num_batched_tokens"])
        assert same(case, rate, row["rps"]), row
        assert same(case, ttft_ms, row["ttft_ms"]), row


@copies("02_regression_decode")
def older_decode(case: Case) -> None:
    model, want = OlderDecode(learning_of(case.input)), case.expected
    _older(case, model)
    assert same(case, model.length.mean, want["avg_decode_length"])
    assert same(case, model.batch.mean, want["avg_num_decode"])
    assert model.most_kv == want["max_observed_kv"]
    for row in want["itl"]:
        assert same(case, model.itl_s(row["scheduled_decode_kv"], row["queued_decode_kv"]), row["itl_s"]), row
    for row in want["capacity"]:
        demand = DecodeDemand(
            row["itl_sla_ms"],
            row["context_length"],
            row["osl"],
            row["max_kv_tokens"],
            row["max_num_seqs"],
            row["accept_length"],
        )
        rate, itl_ms = model.capacity(demand)
        assert same(case, rate, row["rps"]), row
        assert same(case, itl_ms, row["itl_ms"]), row


@copies("02_regression_agg")
def older_agg(case: Case) -> None:
    model, want = OlderAgg(learning_of(case.input)), case.expected
    _older(case, model)
    assert same(case, model.isl.mean, want["avg_isl"])
    assert same(case, model.length.mean, want["avg_decode_length"])
    assert same(case, model.prefill_tokens.mean, want["avg_prefill_tokens"])
    for row in want["ttft"]:
        tokens, batch, kv = row["queued_prefill_tokens"], row["max_num_batched_tokens"], row["current_decode_kv"]
        assert same(case, model.ttft_s(tokens, batch, kv, row["kv_hit_rate"]), row["ttft_s"]), row
    for row in want["itl"]:
        assert same(case, model.itl_s(row["scheduled_decode_kv"], row["queued_decode_kv"]), row["itl_s"]), row
    for row in want["capacity"]:
        _agg_capacity(case, model, row)


def _agg_capacity(case: Case, model: OlderAgg, row: Row) -> None:
    demand = AggDemand(
        row["isl"],
        row["osl"],
        row["max_num_batched_tokens"],
        row["ttft_sla_ms"],
        row["itl_sla_ms"],
        row["max_kv_tokens"],
        row["max_num_seqs"],
        row["kv_hit_rate"],
        row["accept_length"],
    )
    for got, name in zip(model.capacity(demand), ("rps", "ttft_ms", "itl_ms"), strict=True):
        assert same(case, got, row[name]), row


def _older(case: Case, model: Older) -> None:
    """What is kept after each observation, and the line through it."""
    want, kept = case.expected, []
    for row in case.input["observations"]:
        model.learn(fpm_of(row))
        kept.append(len(model.kept))
    assert kept == want["retained_after_each"]
    assert model.enough == want["has_sufficient_data"]
    assert (model.fit is not None) == want["fitted"]
    if "retained" in want:
        assert sorted([*x, y] for x, y in model.kept.samples) == sorted(want["retained"])
    if model.fit is not None:
        assert all(same(case, g, w) for g, w in zip(model.fit.slopes, want["coef"], strict=True))
        assert same(case, model.fit.intercept, want["intercept"])
    for row in want["wall_time_s"] or []:
        x = [value for key, value in row.items() if key != "s"]
        assert same(case, model.wall_time_s(*x), row["s"]), row
