"""The command line on a real nats-server: what is there, what comes, and how it ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from nats_support import fresh_prefix, nats_server

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.streams import ACKS, STREAMS
from headrace.streams.cli.main import EXIT_BUS, EXIT_CONFIG

DGD = "ml/llama-70b"
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    """A server as `headrace run` starts it: its store is .headrace/nats in the working directory."""
    store = tmp_path_factory.mktemp("cli") / ".headrace" / "nats"
    with nats_server(store, store_bytes=1024 * 1024**3) as server:  # streams of a prefix reserve some 2 GiB
        yield server


class Cli:
    """`headrace` in the server's directory, on streams of its own."""

    def __init__(self, server: EmbeddedNats) -> None:
        self.url = server.url
        self.prefix = fresh_prefix()
        self.folder = server.store_dir.parents[1]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        return kept | {"HEADRACE_BUS_PREFIX": self.prefix}

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "headrace", *args]

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*args), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60
        )

    def out(self, *args: str) -> str:
        result = self.run(*args)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """A pipeline; `headrace` is ours, and any part that fails makes it fail."""
        headrace = f'headrace() {{ "{sys.executable}" -m headrace "$@"; }}'
        return subprocess.run(
            ["bash", "-c", f"set -o pipefail; {headrace}; {line}"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def start(self, *args: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.argv(*args),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def publish(self, *what: Record | Outgoing) -> None:
        asyncio.run(self._publish(what))

    async def _publish(self, what: Sequence[Record | Outgoing]) -> None:
        bus = NatsBus(self.url, self.prefix)
        await bus.open()
        try:
            await bus.ensure(STREAMS.values())
            records = RecordBus(bus, "test", time.time)
            for one in what:
                await (bus.publish(one) if isinstance(one, Outgoing) else records.publish(one))
        finally:
            await bus.close()

    def acks(self, n: int) -> list[DecisionAck]:
        """The first `n` acks, waited for."""
        return asyncio.run(self._acks(n))

    async def _acks(self, n: int) -> list[DecisionAck]:
        bus = NatsBus(self.url, self.prefix)
        await bus.open()
        found: list[DecisionAck] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader = await RecordBus(bus, "test", time.time).read(ACKS, after=0)
                while len(found) < n:
                    found += [record for record, _ in await reader.next() if isinstance(record, DecisionAck)]
        finally:
            await bus.close()
        return found


@pytest.fixture
def cli(server: EmbeddedNats) -> Cli:
    return Cli(server)


def ended(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """SIGTERM, and what the process had said; it must end in peace."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out, err


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def decision(i: int, *, dgd: str = DGD, decode: int = 3, advisory: bool = False) -> Decision:
    now = time.time()
    return Decision(
        dgd=dgd,
        epoch=1,
        decision_id=i,
        issued_at=now,
        expires_at=now + 600,
        targets={"decode": decode},
        previous={"decode": 2},
        reasons={"decode": "scale_up"},
        causes=Causes(tick=i),
        advisory=advisory,
    )


def test_the_running_server_is_found_and_the_table_says_what_it_holds(cli: Cli) -> None:
    cli.publish(*EXAMPLES.values(), decision(42))
    rows = {row["name"]: row for row in json.loads(cli.out("streams", "list", "--json"))}
    assert list(rows) == list(STREAMS)
    assert (rows["decisions"]["messages"], rows["decisions"]["first"], rows["decisions"]["last"]) == (2, 1, 2)
    assert rows["fpm"]["messages"] == 1
    assert all(abs(row["last_time"] - time.time()) < 300 for row in rows.values())
    assert all(row["bytes"] > 0 for row in rows.values())


def test_streams_that_nobody_has_made_are_unknown_not_empty(cli: Cli) -> None:
    lines = [line.split("\t") for line in cli.out("streams", "list", "--bus", cli.url).splitlines()]
    assert lines[0][5:] == ["messages", "bytes", "first", "last", "last time"]
    assert all(line[5:] == ["-"] * 5 for line in lines[1:])


def test_looking_makes_no_stream(cli: Cli) -> None:
    cli.out("streams", "list")
    for words in (
        ("streams", "tail", "ticks"),
        ("decisions", "list"),
        ("deadletters", "list"),
        ("deadletters", "show", "1"),
    ):
        result = cli.run(*words)
        assert result.returncode == EXIT_BUS
        assert "has `headrace run` been started on this bus, with this prefix?" in result.stderr
        assert "Traceback" not in result.stderr
    assert {row["messages"] for row in json.loads(cli.out("streams", "list", "--json"))} == {None}


def test_a_tail_without_following_prints_what_is_there(cli: Cli) -> None:
    cli.publish(EXAMPLES["decisions"], Outgoing("decisions", DGD, b"junk"), decision(1, dgd="ml/b"))
    found = [json.loads(line) for line in cli.out("streams", "tail", "decisions", "--no-follow").splitlines()]
    assert [message["position"] for message in found] == [1, 2, 3]
    assert found[0]["record"]["decision_id"] == 41
    assert found[1]["reason"] == "undecodable"
    only = cli.out("streams", "tail", "decisions", "--no-follow", "--dgd", "ml/b")
    assert [json.loads(line)["dgd"] for line in only.splitlines()] == ["ml/b"]


def test_a_batch_of_fpms_is_readable(cli: Cli) -> None:
    cli.publish(EXAMPLES["fpm"])
    (line,) = cli.out("streams", "tail", "fpm", "--from", "start", "--limit", "1").splitlines()
    assert json.loads(line)["record"]["items"][0]["fpm"]["wall_time"] == 0.015625
    laid_out = cli.out("streams", "tail", "fpm", "--no-follow", "-o", "pretty")
    assert laid_out.splitlines()[0].startswith("fpm ")
    assert '        "wall_time": 0.015625,' in laid_out


def test_a_tail_shows_what_comes_and_ends_in_peace(cli: Cli) -> None:
    cli.publish(decision(0))
    process = cli.start("streams", "tail", "decisions", "--from", "-1")
    assert json.loads(line_of(process))["record"]["decision_id"] == 0
    cli.publish(decision(1))
    assert json.loads(line_of(process))["record"]["decision_id"] == 1
    assert ended(process) == ("", "")


def test_a_pipe_that_is_read_no_more_ends_a_tail_without_noise(cli: Cli) -> None:
    cli.publish(*(decision(i) for i in range(300)))
    for line in (
        "headrace streams tail decisions --from start | head -n 1",  # more to print: the pipe breaks
        "headrace streams tail decisions --from -1 | head -n 1",  # nothing more to print: it waits, and notices
        "headrace streams tail decisions --from start --no-follow -o pretty | head -n 1",
        "headrace decisions list --limit 300 | head -n 1",
    ):
        result = cli.shell(line)
        assert (result.returncode, result.stderr) == (0, ""), line
        assert len(result.stdout.splitlines()) == 1


def test_decisions_are_listed_with_what_came_of_them(cli: Cli) -> None:
    first, second = decision(0), decision(1, decode=4)
    applied = DecisionAck(
        dgd=DGD,
        epoch=1,
        decision_id=0,
        status=AckStatus.APPLIED,
        executor="k8s",
        at=first.issued_at + 42,
        counts={"decode": 3},
    )
    cli.publish(first, applied, second)
    lines = [line.split("\t") for line in cli.out("decisions", "list", "--dgd", DGD).splitlines()]
    assert lines[0] == ["id", "epoch", "time", "targets", "reasons", "status", "executor", "delay", "advisory"]
    assert [(line[0], *line[3:]) for line in lines[1:]] == [
        ("0", "decode 2->3", "scale_up", "applied", "k8s", "42 s", "no"),
        ("1", "decode 2->4", "scale_up", "outstanding", "-", "-", "no"),
    ]
    (row,) = json.loads(cli.out("decisions", "list", "--limit", "1", "--json"))
    assert (row["decision_id"], row["status"], row["targets"]) == (1, "outstanding", {"decode": 4})


def test_decisions_are_followed_as_json_even_before_the_first_planner(cli: Cli) -> None:
    process = cli.start("decisions", "follow", "--from", "start")
    cli.publish(decision(0), Outgoing("decisions", DGD, b"junk"), decision(1, dgd="ml/b"))
    found = [json.loads(line_of(process)) for _ in range(2)]
    assert [(d["dgd"], d["decision_id"], d["targets"]) for d in found] == [
        (DGD, 0, {"decode": 3}),
        ("ml/b", 1, {"decode": 3}),
    ]
    out, err = ended(process)
    assert out == ""
    assert err.startswith("headrace: decision at position 2 passed over: ")


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    """An executor: refuses 9 replicas, fails on 8, notes the others."""
    script = tmp_path / "scale.sh"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$HEADRACE_TARGET_DECODE" = 9 ] && { echo "over quota" >&2; exit 75; }\n'
        '[ "$HEADRACE_TARGET_DECODE" = 8 ] && { echo "no such deployment" >&2; exit 1; }\n'
        'echo "$HEADRACE_DGD $HEADRACE_DECISION_ID $HEADRACE_PREVIOUS_DECODE $HEADRACE_TARGET_DECODE" '
        f">> {tmp_path}/ran\n"
        f"cat >> {tmp_path}/stdin\n"
    )
    script.chmod(0o755)
    return script


def test_a_command_carries_decisions_out_and_they_are_acknowledged(cli: Cli, scale: Path) -> None:
    process = cli.start("decisions", "follow", "--exec", str(scale), "--dgd", DGD, "--name", "me")
    settled = []
    for i, decode in enumerate((3, 9, 8)):
        cli.publish(decision(i, decode=decode))
        settled = [ack for ack in cli.acks(2 * (i + 1)) if ack.status.settles]
    assert [(ack.decision_id, ack.status, ack.message) for ack in settled] == [
        (0, "applied", ""),
        (1, "rejected", "over quota"),
        (2, "failed", "no such deployment"),
    ]
    assert {ack.executor for ack in settled} == {"me"}
    assert settled[0].counts == {"decode": 3}
    assert (scale.parent / "ran").read_text() == f"{DGD} 0 2 3\n"
    assert json.loads((scale.parent / "stdin").read_text())["decision_id"] == 0
    out, err = ended(process)
    assert err == f"headrace: what is decided for {DGD} is done, by {scale}; Ctrl-C ends\n"
    assert out.splitlines() == [
        f"{DGD} decision 0 of epoch 1: scaling decode 2 -> 3 (scale_up)",
        f"{DGD} decision 0 of epoch 1: applied (decode 3)",
        f"{DGD} decision 1 of epoch 1: scaling decode 2 -> 9 (scale_up)",
        f"{DGD} decision 1 of epoch 1: rejected: over quota",
        f"{DGD} decision 2 of epoch 1: scaling decode 2 -> 8 (scale_up)",
        f"{DGD} decision 2 of epoch 1: failed: no such deployment",
    ]


def test_a_command_that_takes_too_long_has_failed(cli: Cli) -> None:
    cli.publish(decision(0))
    process = cli.start("decisions", "follow", "--exec", "sleep 60", "--timeout", "0.2", "--dgd", DGD)
    settled = cli.acks(2)[-1]
    assert (settled.status, settled.message) == ("failed", "ended after 0.2 s.")
    ended(process)


def test_a_command_that_runs_is_ended_on_sigterm_and_its_decision_found_again(cli: Cli, scale: Path) -> None:
    cli.publish(decision(0))
    process = cli.start("decisions", "follow", "--exec", "sleep 60", "--dgd", DGD)
    cli.acks(1)
    out, _ = ended(process)
    assert out.splitlines()[-1] == f"{DGD} decision 0 of epoch 1: stopped, left unsettled"
    again = cli.start("decisions", "follow", "--exec", str(scale), "--dgd", DGD)
    assert cli.acks(3)[-1].status == "applied"
    ended(again)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(cli: Cli, scale: Path) -> None:
    cli.publish(decision(0))
    process = cli.start("decisions", "follow", "--exec", str(scale), "--dry-run", "--dgd", DGD)
    says = f"{DGD} decision 0 of epoch 1: would scale decode 2 -> 3 (scale_up); would run {scale}\n"
    assert line_of(process) == says
    cli.publish(decision(1, advisory=True))
    assert "decision 1 of epoch 1: ignored (advisory)" in line_of(process)
    ended(process)
    assert not (scale.parent / "ran").exists()
    rows = json.loads(cli.out("streams", "list", "--json"))
    assert next(row["messages"] for row in rows if row["name"] == "acks") == 0


def test_a_dead_letter_is_listed_shown_and_put_back(cli: Cli) -> None:
    window = EXAMPLES["traffic"]
    cli.publish(Outgoing("traffic", DGD, b"\x00junk", {"x-from": "a proxy"}))
    asyncio.run(read_traffic(cli))
    good = {"reason": "invalid", "message": "repaired since", "position": 99, "reader": "planner", "stream": "traffic"}
    cli.publish(letter_with(encode(window), **good))

    lines = [line.split("\t") for line in cli.out("deadletters", "list").splitlines()]
    assert [(line[0], line[2], line[3], line[5]) for line in lines[1:]] == [
        ("1", "undecodable", "traffic", "5"),
        ("2", "invalid", "traffic", str(len(encode(window)))),
    ]
    shown = cli.out("deadletters", "show", "1")
    assert "header x-from  a proxy" in shown
    assert shown.splitlines()[-1] == f"00000000  {'00 6a 75 6e 6b':<47}  .junk"

    result = cli.run("deadletters", "requeue", "1", "2")
    assert result.returncode == 1
    assert result.stdout.splitlines()[0].startswith("1: refused: traffic record of 5 bytes: ")
    assert result.stdout.splitlines()[1] == "2: put back on traffic at 2"
    assert cli.out("deadletters", "requeue", "--reason", "invalid") == "2: put back on traffic at 2\n"  # counts once
    back = [json.loads(line) for line in cli.out("streams", "tail", "traffic", "--no-follow").splitlines()]
    assert [message.get("reason") for message in back] == ["undecodable", None]


def test_the_bytes_of_a_dead_letter_come_out_as_they_are(cli: Cli) -> None:
    cli.publish(
        letter_with(b"\x00\xff\n\r\x1b", position=1, stream="traffic", reason="undecodable", message="", reader="x")
    )
    result = subprocess.run(
        cli.argv("deadletters", "show", "1", "-o", "raw"),
        cwd=cli.folder,
        env=cli.environment,
        capture_output=True,
        timeout=60,
    )
    assert result.stdout == b"\x00\xff\n\r\x1b"


def test_a_letter_that_is_not_there_is_a_usage_error(cli: Cli) -> None:
    cli.publish()
    for words in (("show", "7"), ("requeue", "7")):
        result = cli.run("deadletters", *words)
        assert result.returncode == EXIT_CONFIG
        assert "there is no dead letter at position 7" in result.stderr


def test_a_bus_that_is_away_is_named_with_the_remedy(cli: Cli) -> None:
    for words in (("streams", "list"), ("streams", "tail", "ticks"), ("decisions", "list"), ("decisions", "follow")):
        result = cli.run(*words, "--bus", "nats://127.0.0.1:9?patience_s=0.1")
        assert result.returncode == EXIT_BUS
        assert "nats://127.0.0.1:9 could not be reached" in result.stderr
        assert result.stdout == ""


def test_without_a_server_each_command_says_how_to_get_one(cli: Cli, tmp_path: Path) -> None:
    for words in (
        ("decisions", "list"),
        ("streams", "tail", "ticks"),
        ("deadletters", "list"),
        ("decisions", "follow"),
    ):
        result = cli.run(*words, "--set", f"bus.store={tmp_path}")
        assert result.returncode == EXIT_BUS
        assert "start `headrace run` or `headrace demo` in this directory first" in result.stderr


def test_the_identity_of_the_settings_is_ours_on_the_bus(cli: Cli, tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats", config='authorization { token: "open-sesame" }') as server:
        result = cli.run("streams", "list", "--bus", server.url)
        assert result.returncode == EXIT_BUS
        assert "refuses us" in result.stderr
        assert cli.run("streams", "list", "--bus", server.url, "--set", "bus.token=open-sesame").returncode == 0
        result = cli.run("streams", "list", "--bus", server.url, "--set", "bus.token=wrong")
        assert result.returncode == EXIT_BUS
        assert "wrong" not in result.stderr


async def read_traffic(cli: Cli) -> None:
    """What the planner does: the bad bytes become a dead letter."""
    bus = NatsBus(cli.url, cli.prefix)
    await bus.open()
    try:
        reader = await RecordBus(bus, "planner", time.time).read(STREAMS["traffic"], after=0)
        await reader.next(timeout=5.0)
    finally:
        await bus.close()


def letter_with(data: bytes, **more: object) -> DeadLetter:
    return DeadLetter(dgd=DGD, at=time.time(), data=data, size=len(data), **more)  # type: ignore[arg-type]
