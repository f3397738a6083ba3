"""What a worker measured of itself."""

import json
from typing import Any

import pytest

from headrace.connectors.profiles.benchmark import read_benchmark
from headrace.schemas.errors import ConfigError


def fpm(wall_time: Any = 0.01, **work: int) -> dict[str, Any]:
    return {"wall_time": wall_time, "scheduled_requests": work}


def point(kind: str | None, *fpms: Any) -> dict[str, Any]:
    return {"point": {} if kind is None else {"point_type": kind}, "fpms": list(fpms)}


PREFILL = fpm(num_prefill_requests=1, sum_prefill_tokens=512)
DECODE = fpm(num_decode_requests=4, sum_decode_kv_tokens=4000)


def test_the_iterations_of_both_kinds_are_read_in_their_order() -> None:
    found = read_benchmark({"results": [point("prefill", PREFILL), point("decode", DECODE, DECODE)]})
    assert [f.scheduled_requests.sum_prefill_tokens for f in found.fpms] == [512, 0, 0]
    assert [f.scheduled_requests.sum_decode_kv_tokens for f in found.fpms] == [0, 4000, 4000]
    assert found.skipped == 0


def test_only_the_kinds_that_were_asked_for_are_read() -> None:
    answer = {"results": [point("prefill", PREFILL), point("decode", DECODE)]}
    assert [f.scheduled_requests.num_decode_requests for f in read_benchmark(answer, ("decode",)).fpms] == [4]


@pytest.mark.parametrize(
    "bad", [fpm(0.0), fpm(-1.0), fpm("slow"), fpm(float("nan")), {"wall_time": 1, "version": "x"}, 7]
)
def test_a_bad_iteration_spoils_only_itself(bad: Any) -> None:
    found = read_benchmark({"results": [point("decode", bad, DECODE)]})
    assert len(found.fpms) == 1
    assert found.skipped == 1


@pytest.mark.parametrize(
    "bad",
    [point(None, DECODE), point("warmup", DECODE), {"fpms": [DECODE]}, {"point": {"point_type": "decode"}}, 7, None],
)
def test_a_point_of_no_known_kind_is_left_out_and_counted(bad: Any) -> None:
    found = read_benchmark({"results": [bad, point("decode", DECODE)]})
    assert len(found.fpms) == 1
    assert found.skipped == 1


def test_an_answer_may_come_as_bytes() -> None:
    answer = json.dumps({"status": "ok", "results": [point("decode", DECODE)]}).encode()
    assert len(read_benchmark(answer).fpms) == 1


@pytest.mark.parametrize("answer", [b"", b"{", b"[" * 100_000])
def test_an_answer_that_is_no_json_is_refused(answer: bytes) -> None:
    with pytest.raises(ConfigError, match="the answer of get_perf_metrics is no JSON"):
        read_benchmark(answer)


@pytest.mark.parametrize("answer", [b"[]", b"{}", b'{"results": {}}', b'{"status": "error", "results": null}'])
def test_an_answer_without_results_names_the_remedy(answer: bytes) -> None:
    with pytest.raises(ConfigError, match="no list `results`: start the workers with their self-benchmark on"):
        read_benchmark(answer)
