"""Our copy of the reference's GPU budgets."""

from conformance import Case, copies

from headrace.models.reference.budget import Band, clamp_pair, clamp_single, tolerance


@copies("07_budget_single")
def single(case: Case) -> None:
    i = case.input
    band = Band(i["min_gpus"], i["max_gpus"], i["min_endpoint"])
    assert clamp_single(i["desired"], i["engine_gpu"], band) == case.expected["replicas"]


@copies("07_budget_pair")
def pair(case: Case) -> None:
    i = case.input
    band = Band(i["min_gpus"], i["max_gpus"], i["min_endpoint"])
    found = clamp_pair((i["num_p"], i["num_d"]), (i["p_gpu"], i["d_gpu"]), band)
    assert found == (case.expected["num_p"], case.expected["num_d"])


@copies("07_budget_bounds")
def bounds(case: Case) -> None:
    i = case.input
    if "gpu_per_replicas" in i:
        assert tolerance(i["gpu_per_replicas"]) == case.expected["tolerance"]
        return
    inside = Band(i["min_gpus"], i["max_gpus"]).holds(i["total"], i.get("tolerance", 0))
    assert inside == case.expected["in_bounds"]
    assert (not inside) == case.expected["has_reason"]
