"""The command executor: what the command gets, what its exit means, and that it cannot hang or be left behind."""

import asyncio
import gc
import json
import os
import stat
from pathlib import Path

import pytest
from bus_support import eventually, kept, memory_records
from decision_support import DGD, decision
from nats_support import is_alive

from headrace.connectors.bus.memory import MemoryBroker
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.command import CommandExecutor, CommandOptions, environment, outcome
from headrace.connectors.executors.outcome import Outcome
from headrace.connectors.executors.process import Finished
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.errors import ConfigError
from headrace.schemas.streams import ACKS


def script(folder: Path, body: str) -> tuple[str, ...]:
    """An executable script; returns its argv."""
    path = folder / "scale.sh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return (str(path),)


async def apply(argv: tuple[str, ...], timeout_s: float = 30.0, given: Decision | None = None) -> Outcome | None:
    """Run a command for a decision, without any bus."""
    records = await memory_records(lambda: 1100.0)
    executor = CommandExecutor(DecisionClient(records, DGD, "x"), CommandOptions(argv, timeout_s))
    return await executor.apply(given or decision(4), asyncio.Event())


async def test_the_command_gets_the_decision_in_its_environment(tmp_path: Path) -> None:
    argv = script(tmp_path, f"env | grep HEADRACE_ | sort > {tmp_path}/env")
    await apply(argv)
    assert (tmp_path / "env").read_text().splitlines() == [
        "HEADRACE_DECISION_ID=4",
        "HEADRACE_DGD=ml/llama",
        "HEADRACE_EPOCH=1",
        "HEADRACE_EXPIRES_AT=2000.000",
        "HEADRACE_ISSUED_AT=1000.000",
        "HEADRACE_PREVIOUS_DECODE=1",
        "HEADRACE_PREVIOUS_PREFILL=1",
        "HEADRACE_REASON_DECODE=scale_up",
        "HEADRACE_REASON_PREFILL=no_change",
        "HEADRACE_TARGET_DECODE=6",
        "HEADRACE_TARGET_PREFILL=1",
    ]


async def test_the_command_gets_the_decision_as_json_on_stdin(tmp_path: Path) -> None:
    await apply(script(tmp_path, f"cat > {tmp_path}/decision.json"))
    found = json.loads((tmp_path / "decision.json").read_text())
    assert (found["schema"], found["dgd"], found["targets"]) == (
        "headrace.decision.v1",
        DGD,
        {"decode": 6, "prefill": 1},
    )


async def test_exit_zero_is_applied_with_the_targets(tmp_path: Path) -> None:
    made = await apply(script(tmp_path, "exit 0"))
    assert made == Outcome(AckStatus.APPLIED, counts={"prefill": 1, "decode": 6})


async def test_counts_on_the_last_line_of_stdout_are_believed(tmp_path: Path) -> None:
    made = await apply(script(tmp_path, """echo scaling; echo '{"prefill": 1, "decode": 5}'"""))
    assert made == Outcome(AckStatus.APPLIED, counts={"prefill": 1, "decode": 5})


async def test_exit_75_is_rejected_with_the_last_line_of_stderr(tmp_path: Path) -> None:  # T36
    made = await apply(script(tmp_path, "echo first >&2; echo over quota >&2; echo >&2; exit 75"))
    assert made == Outcome(AckStatus.REJECTED, "over quota")


@pytest.mark.parametrize("code", [1, 2, 74, 76, 127])
async def test_any_other_exit_has_failed(tmp_path: Path, code: int) -> None:
    made = await apply(script(tmp_path, f"echo no such deployment >&2; exit {code}"))
    assert made == Outcome(AckStatus.FAILED, "no such deployment")


async def test_a_failure_without_words_is_told_by_its_exit_code(tmp_path: Path) -> None:
    assert await apply(script(tmp_path, "exit 3")) == Outcome(AckStatus.FAILED, "exit code 3")


async def test_a_command_that_dies_of_a_signal_has_failed(tmp_path: Path) -> None:
    assert await apply(script(tmp_path, "kill -9 $$")) == Outcome(AckStatus.FAILED, "exit code -9")


async def test_a_command_that_does_not_exist_has_failed() -> None:
    made = await apply(("./no-such-command",))
    assert made is not None
    assert made.status is AckStatus.FAILED
    assert "cannot start './no-such-command'" in made.message


async def test_a_command_that_may_not_be_run_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("x")
    made = await apply((str(path),))
    assert made is not None
    assert made.status is AckStatus.FAILED


async def test_a_command_that_takes_too_long_is_ended_with_all_its_children(tmp_path: Path) -> None:
    argv = script(tmp_path, f"echo working >&2; sleep 600 & echo $! > {tmp_path}/pid; wait")
    made = await apply(argv, timeout_s=0.5)
    assert made == Outcome(AckStatus.FAILED, "ended after 0.5 s. working")
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_a_command_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.executors.process._GRACE_S", 0.2)
    made = await apply(script(tmp_path, "trap '' TERM; while :; do sleep 0.1; done"), timeout_s=0.3)
    assert made is not None
    assert made.status is AckStatus.FAILED


async def test_a_child_that_holds_the_output_open_does_not_hold_us(tmp_path: Path) -> None:
    """A script may start a daemon: its exit counts, not the end of the pipes."""
    made = await apply(script(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; exit 0"))
    assert made is not None
    assert made.status is AckStatus.APPLIED
    daemon = int((tmp_path / "pid").read_text())
    assert is_alive(daemon)
    os.kill(daemon, 9)


async def test_much_output_neither_blocks_nor_fills_the_memory(tmp_path: Path) -> None:
    made = await apply(script(tmp_path, "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2; exit 1"))
    assert made == Outcome(AckStatus.FAILED, "last")


async def test_a_long_last_line_is_cut(tmp_path: Path) -> None:
    made = await apply(script(tmp_path, "head -c 50000 /dev/zero | tr '\\0' x >&2; exit 1"))
    assert made is not None
    assert len(made.message) == 1000


async def test_a_command_that_does_not_read_a_large_decision_does_no_harm() -> None:
    large = decision(4, causes=Causes(tick=1, proposals=[f"proposal {n}" for n in range(50_000)]))
    made = await apply(("true",), given=large)
    assert made is not None
    assert made.status is AckStatus.APPLIED


async def test_a_decision_that_is_too_large_for_an_environment_has_failed() -> None:
    large = decision(4, reasons={f"role{n}": "x" * 100 for n in range(50_000)})
    made = await apply(("true",), given=large)
    assert made is not None
    assert (made.status, "cannot start" in made.message) == (AckStatus.FAILED, True)


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


async def test_no_file_is_left_open(tmp_path: Path) -> None:
    before = open_files()
    for argv in (("true",), ("./no-such-command",), script(tmp_path, "cat; exit 1")):
        for _ in range(3):
            await apply(argv)
    gc.collect()
    await asyncio.sleep(0)
    assert open_files() <= before


def test_roles_become_names_of_variables() -> None:
    made = environment(decision(0, targets={"encode-v2": 3}, previous={}, reasons={"encode-v2": "scale_up"}))
    assert made["HEADRACE_TARGET_ENCODE_V2"] == "3"


@pytest.mark.parametrize(
    "stdout", ["", "done\n", '{"decode": "6"}\n', '{"decode": -1}\n', "[1]\n", '{"decode": 6}\nbye\n']
)
def test_output_that_is_no_counts_is_ignored(stdout: str) -> None:
    assert outcome({"decode": 6}, Finished(0, stdout, "")).counts == {"decode": 6}
    assert outcome({"decode": 6}, Finished(1, stdout, "")).counts == {}


def test_a_command_line_is_split_as_a_shell_would() -> None:
    assert CommandOptions.parse("./scale.sh --to 'a b'").argv == ("./scale.sh", "--to", "a b")


@pytest.mark.parametrize("command", ["", "   ", "./scale.sh 'open"])
def test_a_command_line_that_cannot_be_is_refused(command: str) -> None:
    with pytest.raises(ConfigError):
        CommandOptions.parse(command)


class World:
    """A command executor on a bus in memory, and the planner's side of it."""

    def __init__(self, argv: tuple[str, ...], timeout_s: float = 30.0) -> None:
        self.argv, self.timeout_s = argv, timeout_s
        self.broker = MemoryBroker(lambda: 1100.0)
        self.stop = asyncio.Event()
        self.planner: RecordBus

    async def __aenter__(self) -> "World":
        self.planner = await memory_records(self.broker.clock, "planner", self.broker)
        records = await memory_records(self.broker.clock, "x", self.broker)
        executor = CommandExecutor(DecisionClient(records, DGD, "x"), CommandOptions(self.argv, self.timeout_s))
        self.running = asyncio.create_task(executor.run(self.stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await self.running

    async def after(self, acks: int) -> list[tuple[int, AckStatus]]:
        await eventually(lambda: self.broker.log(ACKS.name).info().messages >= acks)
        found = [record for record in await kept(self.planner, ACKS) if isinstance(record, DecisionAck)]
        return [(record.decision_id, record.status) for record in found]


async def test_one_command_runs_at_a_time_and_the_newest_decision_is_next(tmp_path: Path) -> None:
    argv = script(
        tmp_path,
        f"echo begin $HEADRACE_DECISION_ID >> {tmp_path}/ran; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; "
        f"echo end $HEADRACE_DECISION_ID >> {tmp_path}/ran",
    )
    async with World(argv) as world:
        await world.planner.publish(decision(0))
        await eventually((tmp_path / "ran").exists)
        for n in (1, 2, 3):
            await world.planner.publish(decision(n))
        (tmp_path / "go").touch()
        assert await world.after(acks=4) == [
            (0, AckStatus.ACCEPTED),
            (0, AckStatus.APPLIED),
            (3, AckStatus.ACCEPTED),
            (3, AckStatus.APPLIED),
        ]
    assert (tmp_path / "ran").read_text().split("\n")[:-1] == ["begin 0", "end 0", "begin 3", "end 3"]


async def test_a_command_that_runs_when_the_executor_stops_is_ended_and_its_decision_left_open(tmp_path: Path) -> None:
    argv = script(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    async with World(argv) as world:
        await world.planner.publish(decision(0))
        await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert await world.after(acks=1) == [(0, AckStatus.ACCEPTED)]


async def test_after_a_failure_the_next_decision_is_carried_out(tmp_path: Path) -> None:
    async with World(script(tmp_path, 'test "$HEADRACE_DECISION_ID" != 0')) as world:
        await world.planner.publish(decision(0))
        await world.after(acks=2)
        await world.planner.publish(decision(1))
        assert (await world.after(acks=4))[1::2] == [(0, AckStatus.FAILED), (1, AckStatus.APPLIED)]
