"""docker-compose.yml and what it mounts: valid, pinned, reachable from this machine only, and started in order."""

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace import __version__
from headrace.streams.settings import load

SERVICES = ("nats", "kafka", "prometheus", "planner", "simulator")


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((root / "docker-compose.yml").read_text())
    return document


def compose_command() -> list[str]:
    """The command of compose version 1 or 2, whichever is there."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    pytest.skip("neither docker-compose nor docker compose is installed")


def test_compose_accepts_the_file(root: Path) -> None:
    result = subprocess.run([*compose_command(), "config", "-q"], cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_services_are_there(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == set(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_pinned_to_a_version(compose: dict[str, Any], service: str) -> None:
    assert re.search(r":v?\d+\.\d+\.\d+(-\w+)?$", compose["services"][service]["image"])


def test_our_image_is_of_our_version(compose: dict[str, Any]) -> None:
    assert compose["services"]["planner"]["image"] == f"headrace:{__version__}"
    assert compose["services"]["simulator"]["image"] == f"headrace:{__version__}"


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_says_whether_it_is_well(compose: dict[str, Any], service: str) -> None:
    assert compose["services"][service]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("service", SERVICES)
def test_a_port_is_published_on_loopback_only(compose: dict[str, Any], service: str) -> None:
    assert [port for port in compose["services"][service].get("ports", []) if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_waits_until_the_ones_it_needs_are_well(compose: dict[str, Any], service: str) -> None:
    needs = compose["services"][service].get("depends_on", {})
    assert {name: need["condition"] for name, need in needs.items()} == dict.fromkeys(needs, "service_healthy")


def mounts(compose: dict[str, Any]) -> set[str]:
    """The volumes and files that the services mount, by their name outside."""
    return {volume.partition(":")[0] for s in SERVICES for volume in compose["services"][s].get("volumes", [])}


def test_data_outlives_its_container(compose: dict[str, Any]) -> None:
    assert set(compose["volumes"]) == {name for name in mounts(compose) if not name.startswith(".")}
    assert set(compose["volumes"]) == {"nats-data", "kafka-data", "prometheus-data"}


def test_what_is_mounted_or_built_from_is_in_the_repository(root: Path, compose: dict[str, Any]) -> None:
    files = {name for name in mounts(compose) if name.startswith("./")}
    files.add(compose["services"]["planner"]["build"]["dockerfile"])
    assert [name for name in files if not (root / name).is_file()] == []


def test_the_image_copies_only_what_the_build_context_holds(root: Path) -> None:
    ignore = (root / ".dockerignore").read_text().splitlines()
    copies = re.findall(r"^COPY (?!--)(.*) \S+$", (root / "deploy/Dockerfile").read_text(), re.MULTILINE)
    copied = {source.rstrip("/") for sources in copies for source in sources.split()}
    assert copied == {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert [name for name in copied if not (root / name).exists()] == []


def test_kafka_is_the_version_that_the_tests_run_on(root: Path, compose: dict[str, Any]) -> None:
    pinned = re.search(r"<kafka.version>(.*)</kafka.version>", (root / "tools/kafka/pom.xml").read_text())
    assert pinned
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{pinned[1]}"
    jars = (root / "tools/kafka/checksums.sha256").read_text().split()[1::2]
    assert f"kafka_2.13-{pinned[1]}.jar" in jars


def test_the_image_does_not_run_as_root(root: Path) -> None:
    last_stage = (root / "deploy/Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*$", last_stage, re.MULTILINE)


def test_the_planner_accepts_its_configuration(root: Path) -> None:
    found = load(str(root / "deploy/planner.yaml"), environ={})
    assert found.edges.bus.url == "nats://nats:4222"


def test_the_server_accepts_its_configuration(root: Path) -> None:
    server = Path(sys.executable).parent / "nats-server"
    result = subprocess.run([server, "-t", "-c", root / "deploy/nats.conf"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_prometheus_scrapes_the_port_that_the_planner_serves(root: Path, compose: dict[str, Any]) -> None:
    jobs = yaml.safe_load((root / "deploy/prometheus.yml").read_text())["scrape_configs"]
    target = next(job for job in jobs if job["job_name"] == "headrace")["static_configs"][0]["targets"][0]
    service, port = target.split(":")
    assert service == "planner"
    assert [p for p in compose["services"]["planner"]["ports"] if p.endswith(f":{port}")] != []


@pytest.mark.parametrize("service", ["planner", "simulator"])
@pytest.mark.parametrize("part", ["command", "healthcheck"])
def test_the_command_line_knows_what_a_container_runs(compose: dict[str, Any], service: str, part: str) -> None:
    said = compose["services"][service][part]
    words: list[str] = said["test"][2:] if part == "healthcheck" else said
    subcommand = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    subcommand = subcommand[:2] if subcommand[0] == "streams" else subcommand[:1]
    program = Path(sys.executable).parent / "headrace"
    result = subprocess.run([program, *subcommand, "--help"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [word for word in words if word.startswith("--") and word not in result.stdout] == []
