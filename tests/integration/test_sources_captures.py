"""The recordings of a real Dynamo 1.4.2, through the sources: every FPM comes out, every arrival is counted once."""

import re
from collections import defaultdict
from itertools import pairwise

import pytest
from captures import CAPTURES, messages, needs_captures

from headrace.connectors.sources.fpm_packer import COMPONENTS, FpmPacker, Route
from headrace.connectors.sources.frontend_page import Selector, read_page
from headrace.connectors.sources.frontend_windows import FrontendWindows
from headrace.connectors.sources.replay_fpm import fpm_batches, traffic_windows
from headrace.schemas.codec import decode, encode
from headrace.schemas.errors import RecordError
from headrace.schemas.fpm import decode_envelope, decode_fpm
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.traffic import TrafficWindow

pytestmark = [pytest.mark.shared, needs_captures]

DGD = "ml/llama"
KINDS = {"disagg": {"prefill": 156, "decode": 3093}, "agg": {"agg": 3511}}


def batches(kind: str) -> list[FpmBatch]:
    routes = [Route("dynamo", DGD, COMPONENTS[kind])]
    found = list(fpm_batches(CAPTURES / f"{kind}_fpm.jsonl.gz", routes))
    assert all(isinstance(one, FpmBatch) for one in found), "a recording of the real thing has no bad messages"
    return [one for one in found if isinstance(one, FpmBatch)]


def windows(kind: str) -> list[TrafficWindow]:
    return list(traffic_windows(CAPTURES / f"{kind}_metrics", DGD, Selector(model="TINY-model", namespace="dynamo")))


@pytest.mark.parametrize("kind", KINDS)
def test_every_recorded_fpm_is_in_a_batch_of_its_role_and_can_be_decoded(kind: str) -> None:
    counts: dict[str, int] = defaultdict(int)
    for batch in batches(kind):
        counts[batch.role] += len(batch.items)
        for item in batch.items:
            assert decode_fpm(item.payload).worker_id
    assert counts == KINDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_payloads_and_order_are_those_of_the_recording(kind: str) -> None:
    recorded: dict[int, list[bytes]] = defaultdict(list)
    for _, _, data in messages(kind):
        envelope = decode_envelope(data)
        recorded[envelope.publisher_id].append(envelope.payload)
    packed: dict[int, list[bytes]] = defaultdict(list)
    for batch in batches(kind):
        assert decode("fpm", encode(batch)) == batch
        for item in batch.items:
            packed[item.publisher_id].append(item.payload)
    assert packed == recorded


@pytest.mark.parametrize("kind", KINDS)
def test_the_recordings_have_no_gaps(kind: str) -> None:
    packer = FpmPacker([Route("dynamo", DGD, COMPONENTS[kind])], source="s")
    for t, subject, data in messages(kind):
        assert packer.add(subject, data, t) is None
    counters = packer.counters
    assert (counters.received, counters.missing, counters.repeated, counters.bad) == (
        sum(KINDS[kind].values()),
        0,
        0,
        0,
    )


def started(kind: str, scrape: int) -> int:
    """What the request counters of a recorded page sum up to, read without any parser of ours."""
    page = sorted((CAPTURES / f"{kind}_metrics").glob("*.txt"))[scrape].read_text()
    return sum(int(n) for n in re.findall(r"^dynamo_frontend_requests_started_total\{.*\} (\d+)$", page, re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS)
def test_arrivals_add_up_to_the_difference_of_the_counters(kind: str) -> None:
    found = windows(kind)
    assert len(found) == 12
    assert sum(window.requests or 0 for window in found) == started(kind, -1) - started(kind, 0) == 129


@pytest.mark.parametrize("kind", KINDS)
def test_each_window_has_the_difference_of_its_two_scrapes(kind: str) -> None:
    assert [w.requests for w in windows(kind)] == [started(kind, n + 1) - started(kind, n) for n in range(12)]


@pytest.mark.parametrize("kind", KINDS)
def test_windows_follow_the_times_of_the_scrapes(kind: str) -> None:
    found = windows(kind)
    assert all(before.end == after.start for before, after in pairwise(found))
    assert all(4.99 < window.end - window.start < 5.01 for window in found)
    assert len({window.window_id for window in found}) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_means_and_buckets_are_those_of_the_requests_that_were_sent(kind: str) -> None:
    """The load was made of outputs of 16, 64 and 128 tokens and inputs up to 4000."""
    for window in windows(kind):
        assert window.isl is not None
        assert window.osl is not None
        if window.isl.mean is not None:
            assert 0 < window.isl.mean <= 4100
        if window.osl.mean is not None:
            assert 16 <= window.osl.mean <= 128
        assert sum(window.isl.counts) == window.isl.count


def test_an_idle_window_of_the_recording_is_a_known_zero() -> None:  # T1
    idle = windows("disagg")[6]
    assert idle.requests == 0
    assert idle.isl is not None
    assert (idle.isl.count, idle.isl.mean, idle.kv_hit_rate) == (0, None, None)
    assert list(idle.unknown) == ["kv_hit_rate"]


@pytest.mark.parametrize("kind", KINDS)
def test_under_load_everything_is_known(kind: str) -> None:
    found = windows(kind)
    assert all(window.unknown == {} for n, window in enumerate(found) if n != 6)
    assert all(0.0 < (window.kv_hit_rate or 0) <= 1.0 for n, window in enumerate(found) if n != 6)


def test_a_frontend_that_was_restarted_counts_from_zero() -> None:
    """The first page of one run after the last of another: another process, and its uptime tells that it is new."""
    pages = {kind: sorted((CAPTURES / f"{kind}_metrics").glob("*.txt")) for kind in KINDS}
    before, after = (read_page(page.read_bytes(), Selector()) for page in (pages["disagg"][-1], pages["agg"][0]))
    restarted = FrontendWindows(DGD, "frontend", ["a"])
    restarted.round(1000.0, {"a": before})
    window = restarted.round(1040.0, {"a": after})
    assert window is not None
    assert window.requests == started("agg", 0) == 1


def test_two_frontends_behind_one_address_are_not_taken_for_a_restart() -> None:
    pages = {kind: sorted((CAPTURES / f"{kind}_metrics").glob("*.txt")) for kind in KINDS}
    one, other = (read_page(pages[kind][-1].read_bytes(), Selector()) for kind in KINDS)
    balanced = FrontendWindows(DGD, "frontend", ["a"])
    balanced.round(1000.0, {"a": one})
    window = balanced.round(1005.0, {"a": other})
    assert window is not None
    assert window.requests is None
    assert "load balancer" in window.unknown["requests"]


@pytest.mark.parametrize("name", ["frontend_metrics.txt", "frontend_metrics_agg.txt"])
def test_pages_of_real_frontends_are_readable(name: str) -> None:
    reading = read_page((CAPTURES / name).read_bytes(), Selector(model="tiny-model"))
    assert reading.unreadable == {}
    assert sum(reading.arrivals.values()) > 100


@pytest.mark.parametrize("worker", ["agg_worker_18081", "disagg_worker_18081", "disagg_worker_18082"])
def test_a_workers_page_is_not_taken_for_a_frontends(worker: str) -> None:
    with pytest.raises(RecordError, match="has no dynamo_frontend_ metrics"):
        read_page((CAPTURES / f"{worker}_metrics.txt").read_bytes(), Selector())
