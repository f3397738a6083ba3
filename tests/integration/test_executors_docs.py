"""The examples of docs/executors.md do what the page says."""

import asyncio
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from bus_support import eventually, kept, memory_records
from decision_support import decision

from headrace.connectors.bus.memory import MemoryBroker
from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.command import REJECTED, CommandExecutor, CommandOptions
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.streams import ACKS

DGD = "ml/llama-70b"


def blocks(root: Path, language: str) -> list[str]:
    text = (root / "docs" / "executors.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


async def test_the_shell_script_scales_both_roles_and_waits_for_them(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [text] = [block for block in blocks(root, "sh") if block.startswith("#!/bin/sh")]
    script = executable(tmp_path / "scale.sh", text)
    executable(tmp_path / "kubectl", f'#!/bin/sh\necho "kubectl $*" >> {tmp_path}/calls\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    records = await memory_records(lambda: 1100.0)
    executor = CommandExecutor(DecisionClient(records, DGD, "x"), CommandOptions((str(script),)))
    made = await executor.apply(decision(4, dgd=DGD), asyncio.Event())
    assert made is not None
    assert (made.status, made.counts) == (AckStatus.APPLIED, {"prefill": 1, "decode": 6})
    assert (tmp_path / "calls").read_text().splitlines() == [
        "kubectl -n ml scale deployment/llama-70b-prefill --replicas 1",
        "kubectl -n ml scale deployment/llama-70b-decode --replicas 6",
        "kubectl -n ml rollout status deployment/llama-70b-prefill --timeout 10m",
        "kubectl -n ml rollout status deployment/llama-70b-decode --timeout 10m",
    ]


async def test_the_shell_script_fails_when_kubectl_does(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [text] = [block for block in blocks(root, "sh") if block.startswith("#!/bin/sh")]
    script = executable(tmp_path / "scale.sh", text)
    executable(tmp_path / "kubectl", "#!/bin/sh\necho 'error: deployments.apps not found' >&2; exit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    records = await memory_records(lambda: 1100.0)
    executor = CommandExecutor(DecisionClient(records, DGD, "x"), CommandOptions((str(script),)))
    made = await executor.apply(decision(4, dgd=DGD), asyncio.Event())
    assert made is not None
    assert (made.status, made.message) == (AckStatus.FAILED, "error: deployments.apps not found")


class Orchestrator:
    """What the Python example talks to."""

    def __init__(self) -> None:
        self.replicas = {"prefill": 1, "decode": 1}

    async def scale(self, role: str, replicas: int) -> None:
        self.replicas[role] = replicas

    async def count(self) -> dict[str, int]:
        return dict(self.replicas)


async def test_the_python_example_scales_and_refuses(root: Path) -> None:
    example: dict[str, Any] = {}
    exec(next(block for block in blocks(root, "python") if "class Scaler" in block), example)
    broker = MemoryBroker(lambda: 1100.0)
    planner = await memory_records(broker.clock, "planner", broker)
    records = await memory_records(broker.clock, "x", broker)
    orchestrator, stop = Orchestrator(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(example["main"](records, orchestrator, stop))
        await planner.publish(decision(4, dgd=DGD))
        await eventually(lambda: broker.log(ACKS.name).info().messages == 2)
        await planner.publish(decision(20, dgd=DGD))
        await eventually(lambda: broker.log(ACKS.name).info().messages == 4)
        stop.set()
    acks = [record for record in await kept(planner, ACKS) if isinstance(record, DecisionAck)]
    assert [(ack.status, ack.message) for ack in acks[1::2]] == [
        (AckStatus.APPLIED, ""),
        (AckStatus.REJECTED, "16 workers at most"),
    ]
    assert orchestrator.replicas == {"prefill": 1, "decode": 6}


def test_the_exit_code_of_the_page_is_the_one_in_the_code(root: Path) -> None:
    assert f"exits with {REJECTED} (`EX_TEMPFAIL`)" in (root / "docs" / "executors.md").read_text()
