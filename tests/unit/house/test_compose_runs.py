"""What the containers run, run here: server, planner and fleet of docker-compose.yml, with their own checks."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

PATIENCE_S = 90.0
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Stack:
    """The three processes' addresses, and how to run the checks that compose would run."""

    compose: dict[str, Any]
    config: Path
    planner_port: int
    frontend_port: int
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def eventually(self, true: Callable[[], bool], what: str) -> None:
        """Wait until something holds; the patience is for a slow machine, and no promise."""
        end = time.monotonic() + PATIENCE_S
        while not true():
            ended = {name: process.returncode for name, process in self.processes.items() if process.poll() is not None}
            assert ended == {}, "\n".join((self.config.parent / f"{name}.log").read_text()[-1000:] for name in ended)
            assert time.monotonic() < end, f"in {PATIENCE_S:g} s, not once: {what}"
            time.sleep(0.2)

    def start(self, running: ExitStack, name: str, *command: str | Path) -> None:
        """Start a process that ends with the stack and writes its log beside the configuration."""
        log = running.enter_context((self.config.parent / f"{name}.log").open("w"))
        self.processes[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
        running.callback(self.processes[name].wait, 20)
        running.callback(self.processes[name].terminate)

    def words(self, words: list[str]) -> list[str]:
        """A container's words, for this machine."""
        here = {"/etc/headrace/planner.yaml": str(self.config), "0.0.0.0": "127.0.0.1", "9400": str(self.frontend_port)}
        return [here.get(word, word) for word in words]

    def is_well(self, service: str) -> bool:
        """What compose's check of a service says."""
        check = self.words(self.compose["services"][service]["healthcheck"]["test"][1:])
        environment = os.environ | {"HEADRACE_CONFIG": str(self.config)}
        try:
            result = subprocess.run([BIN / check[0], *check[1:]], env=environment, capture_output=True, timeout=20)
        except subprocess.TimeoutExpired:
            return False
        return result.returncode == 0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def answers(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def stack(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("compose")
    clients, monitoring, planner, frontend = (free_port() for _ in range(4))
    conf = (root / "deploy/nats.conf").read_text().replace("/data", str(folder / "data"))
    conf = conf.replace("0.0.0.0:4222", f"127.0.0.1:{clients}").replace("0.0.0.0:8222", f"127.0.0.1:{monitoring}")
    (folder / "nats.conf").write_text(conf)
    config = (root / "deploy/planner.yaml").read_text().replace("nats:4222", f"127.0.0.1:{clients}")
    config = config.replace("simulator:9400", f"127.0.0.1:{frontend}").replace("port: 9085", f"port: {planner}")
    (folder / "planner.yaml").write_text(config.replace("0.0.0.0", "127.0.0.1"))
    compose = yaml.safe_load((root / "docker-compose.yml").read_text())
    here = Stack(compose, folder / "planner.yaml", planner, frontend)
    with ExitStack() as running:
        here.start(running, "nats", BIN / "nats-server", "-c", folder / "nats.conf")
        here.eventually(lambda: answers(clients), "nats-server answers")
        for service in ("planner", "simulator"):
            words = here.words(compose["services"][service]["command"])
            here.start(running, service, BIN / "headrace", *words)
        yield here


@pytest.mark.parametrize("service", ["planner", "simulator"])
def test_a_container_that_works_is_well(stack: Stack, service: str) -> None:
    stack.eventually(lambda: stack.is_well(service), f"{service} is well")


def test_the_planner_serves_what_prometheus_scrapes(stack: Stack) -> None:
    stack.eventually(lambda: answers(stack.planner_port), "the planner serves")
    page = httpx.get(f"http://127.0.0.1:{stack.planner_port}/metrics").text
    assert re.search(r"^headrace_\w+", page, re.MULTILINE)


def test_the_simulator_serves_what_the_planner_scrapes(stack: Stack) -> None:
    stack.eventually(lambda: answers(stack.frontend_port), "the simulator serves")
    page = httpx.get(f"http://127.0.0.1:{stack.frontend_port}/metrics").text
    assert "dynamo_frontend_requests" in page
