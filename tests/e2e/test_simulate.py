"""`headrace simulate`: on a virtual clock, and live on a bus with a planner as another process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cli_site import DGD, Site, bus_at, live_config, read_all, until_there
from nats_support import nats_server

from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.streams import ACKS, DECISIONS


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Two minutes, 30 requests a second in the middle of them."""
    rows = [
        f"2026-01-01 10:0{t // 60}:{t % 60:02}.{1000 * k // rate:03}0000,{800 + 50 * (k % 9)},{40 + 10 * (k % 5)}"
        for t in range(120)
        for rate in (30 if 30 <= t < 90 else 3,)
        for k in range(rate)
    ]
    path = tmp_path / "small.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return str(path)


TIGHT = ("--set", "ttft_ms=300", "--set", "itl_ms=8", "--startup-s", "5", "--fleet", "prefill=1,decode=1")
LOOPS = ("--set", "throughput_adjustment_interval_seconds=20")


def test_a_trace_is_planned_and_compared_with_fixed_fleets(site: Site, trace: str) -> None:
    result = site.run("simulate", trace, *TIGHT, *LOOPS, "--preset", "8b", "--fleets", "4")
    assert (result.returncode, result.stderr) == (0, "")
    first, *table = result.stdout.splitlines()
    assert first == "small: 1980 requests in 2 min; SLA TTFT 300 ms, ITL 8 ms"
    assert table[0].split() == [
        "fleet",
        "goodput",
        "GPU-hours",
        "TTFT",
        "p50/p99",
        "ms",
        "ITL",
        "p50/p99",
        "ms",
        "actions",
    ]
    names = [line.split("  ")[0] for line in table[1:-2]]
    assert names[0] == "Headrace"
    assert names[-1] == "lower bound"
    assert all(name.startswith("fixed") for name in names[1:-1])
    assert 1 <= len(names[1:-1]) <= 4
    assert "1980 finished, 0 not, 0 refused." in table[-1]


def test_the_report_as_json_has_everything_and_is_the_same_twice(site: Site, trace: str) -> None:
    args = ("simulate", trace, *TIGHT, *LOOPS, "--preset", "8b", "--fleets", "3", "--json")
    first, second = site.run(*args), site.run(*args)
    assert (first.returncode, first.stdout) == (0, second.stdout)
    found = json.loads(first.stdout)
    report, static, comparison = found["report"], found["static"], found["comparison"]
    assert (report["requests"], report["finished"], report["unfinished"], report["refused"]) == (1980, 1980, 0, 0)
    assert report["sla"] == {"ttft_ms": 300.0, "itl_ms": 8.0}
    assert report["fleet_at_start"] == {"prefill": 1, "decode": 1}
    assert 0 < report["goodput"] <= min(report["goodput_ttft"], report["goodput_itl"]) <= 1
    assert report["gpu_hours"] == pytest.approx(sum(report["gpu_hours_of"].values()))
    assert report["decisions"] == len(report["actions"]) >= 1
    assert report["fpms"] > 1000
    assert report["timeline"]
    assert report["bound"]["gpu_hours"] < report["gpu_hours"]
    assert 1 <= len(static) <= 3
    assert (comparison["goodput"], comparison["gpu_hours"]) == (report["goodput"], report["gpu_hours"])
    for name in ("cheapest_no_worse", "best_no_dearer"):
        assert comparison[name] is None or comparison[name] in static


def test_without_fixed_fleets_nothing_is_compared(site: Site, trace: str) -> None:
    found = json.loads(site.run("simulate", trace, "--no-static", "--json").stdout)
    assert (found["static"], found["comparison"]) == ([], None)


def test_a_configuration_and_flags_over_it_decide_what_is_simulated(site: Site, trace: str) -> None:
    load = {"shape": "constant", "duration_s": 60, "requests_per_s": 2, "isl_mean": 500, "osl_mean": 20}
    simulator = {"preset": "8b", "load": load, "fleet": {"agg": 2}}
    path = site.write({"mode": "agg", "optimization_target": "sla", "dgd": DGD, "simulator": simulator})
    report = json.loads(site.run("simulate", "-c", str(path), "--no-static", "--json").stdout)["report"]
    assert report["fleet_at_start"] == {"agg": 2}
    assert 60 < report["requests"] < 180
    flags = ("--fleet", "agg=3", "--no-static", "--json")
    report = json.loads(site.run("simulate", trace, *flags, HEADRACE_CONFIG=str(path)).stdout)["report"]
    assert (report["fleet_at_start"], report["requests"]) == ({"agg": 3}, 1980)


@pytest.mark.parametrize(
    ("content", "args", "words"),
    [
        (b"", (), "trace.csv"),
        (b"\x00\xff\x00\xff", (), "trace.csv"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", (), "trace.csv"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n", (), "trace.csv"),
        (b"a,b\n1,2\n", (), "trace.csv"),
        (None, ("--fleet", "decode"), "write ROLE=N,ROLE=N"),
        (None, ("--fleet", "agg=2"), "plans prefill, decode"),
        (None, ("--preset", "9000b"), "9000b"),
        (None, ("--set", "mode=turbo"), "turbo"),
        (None, ("--set", "simulator.load=3"), "simulator"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    site: Site, content: bytes | None, args: tuple[str, ...], words: str
) -> None:
    path = site.folder / "trace.csv"
    if content is not None:
        path.write_bytes(content)
        args = (str(path), *args)
    result = site.run("simulate", *args)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
async def test_a_live_deployment_and_a_planner_meet_on_the_planners_own_server(site: Site) -> None:
    """Two processes that share a folder: the planner's embedded server is found there."""
    site.write(live_config())
    config = {"HEADRACE_CONFIG": "planner.yaml"}
    planner = site.start("planner", "run", **config)
    site.says("planner", "planning in epoch 1")
    simulator = site.start("simulator", "simulate", "--live", **config)
    site.says("planner", "decision 0: ")
    site.until(
        lambda: '"applied"' in site.run("decisions", "list", "--json", **config).stdout, lambda: site.log("planner")
    )
    listed = json.loads(site.run("decisions", "list", "--json", **config).stdout)
    assert listed[0]["executor"] == "simulator"
    assert site.stop(simulator) == 0
    assert site.stop(planner) == 0
    assert "Traceback" not in site.log("planner") + site.log("simulator")


@pytest.mark.slow
async def test_the_environment_alone_brings_a_planner_and_a_deployment_together(site: Site, tmp_path: Path) -> None:
    """Another server, another DGD, another prefix, and targets of its own: all by HEADRACE_ variables."""
    site.write(live_config(bus="nats://127.0.0.1:9", dgd="not/this"))
    with nats_server(tmp_path / "nats") as server:
        site.env = {
            "HEADRACE_CONFIG": "planner.yaml",
            "HEADRACE_BUS_URL": server.url,
            "HEADRACE_BUS_PREFIX": "elsewhere",
            "HEADRACE_DGD": DGD,
            "HEADRACE_MAX_GPU_BUDGET": "5",
        }
        planner = site.start("planner", "run")
        simulator = site.start("simulator", "simulate", "--live", "--fleet", "prefill=1,decode=1")
        async with bus_at(server.url, "elsewhere") as records:

            def carried_out(acks: list[DecisionAck]) -> bool:
                return sum(ack.status is AckStatus.APPLIED for ack in acks) >= 2

            acks = await until_there(records, ACKS, carried_out)
            decisions = await read_all(records, DECISIONS)
        assert max(sum(d.targets.values()) for d in decisions) in (3, 4, 5)
        asked = {d.decision_id: d.targets for d in decisions}
        assert all(ack.counts == asked[ack.decision_id] for ack in acks if ack.status is AckStatus.APPLIED)
        assert [site.stop(simulator), site.stop(planner)] == [0, 0]
    assert yaml.safe_load((site.folder / "planner.yaml").read_text())["dgd"] == "not/this"
