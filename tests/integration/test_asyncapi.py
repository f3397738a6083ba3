"""schemas/asyncapi.yaml under the AsyncAPI initiative's own parser.

The parser does not compare examples with schemas in AsyncAPI 3; tests/unit/schemas/test_generated.py does.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.schemas.base import schema_of
from headrace.schemas.streams import STREAMS

CHECK = Path(__file__).parent / "asyncapi"
SCHEMAS = Path(__file__).parents[2] / "schemas"
MINUTES = 60


@pytest.fixture(scope="session")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the parser in it, installed from its lock file, once."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are needed to run the AsyncAPI parser")
    installed = CHECK / "node_modules" / ".package-lock.json"
    lock = CHECK / "package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        install = subprocess.run(["npm", "ci"], cwd=CHECK, capture_output=True, text=True, timeout=8 * MINUTES)
        if install.returncode != 0:
            pytest.skip(f"npm could not install the AsyncAPI parser: {install.stderr.strip()[-300:]}")
    return CHECK


def parse(parser: Path, document: Path) -> Any:
    """What the parser finds in a document and says about it."""
    run = subprocess.run(
        ["node", "check.mjs", str(document)], cwd=parser, capture_output=True, text=True, timeout=2 * MINUTES
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="session")
def parsed(parser: Path) -> Any:
    return parse(parser, SCHEMAS / "asyncapi.yaml")


def complaints(parsed: Any) -> list[tuple[str, str]]:
    return [(d["severity"], d["code"]) for d in parsed["diagnostics"] if d["severity"] in ("error", "warning")]


pytestmark = pytest.mark.timeout(10 * MINUTES)


def test_the_parser_has_nothing_to_complain_about(parsed: Any) -> None:
    assert parsed["diagnostics"] == [d for d in parsed["diagnostics"] if d["code"] == "asyncapi-latest-version"]


def test_every_stream_is_a_channel_with_its_record(parsed: Any) -> None:
    found = {channel["id"]: (channel["address"], channel["messages"][0]["name"]) for channel in parsed["channels"]}
    assert found == {
        name: (f"headrace.{name}.{{namespace}}.{{name}}", schema_of(stream.record)) for name, stream in STREAMS.items()
    }


def test_the_parser_followed_the_references_to_the_json_schemas(parsed: Any) -> None:
    required = {channel["id"]: channel["messages"][0]["required"] for channel in parsed["channels"]}
    assert required["acks"] == ["schema", "dgd", "epoch", "decision_id", "status", "executor", "at"]
    assert all("schema" in names and "dgd" in names for names in required.values())


def test_every_message_has_cloudevents_headers_and_an_example(parsed: Any) -> None:
    for channel in parsed["channels"]:
        (message,) = channel["messages"]
        assert {"ce-specversion", "ce-id", "ce-source", "ce-type", "content-type"} <= set(message["headers"])
        assert message["examples"] == 1
        expected = "application/msgpack" if channel["id"] == "fpm" else "application/json"
        assert message["contentType"] == expected


def test_the_planner_sends_decisions_and_receives_acks(parsed: Any) -> None:
    assert "send decisions" in parsed["operations"]
    assert "receive decisions" not in parsed["operations"]
    assert "receive acks" in parsed["operations"]
    assert "send acks" not in parsed["operations"]


@pytest.mark.parametrize("damage", ["operation", "reference", "address"])
def test_the_parser_finds_a_damaged_document(parser: Path, tmp_path: Path, damage: str) -> None:
    tree = yaml.safe_load((SCHEMAS / "asyncapi.yaml").read_text())
    if damage == "operation":
        tree["operations"]["receiveAcks"]["messages"][0]["$ref"] = "#/components/messages/decision"
    elif damage == "reference":
        tree["components"]["messages"]["ack"]["payload"]["$ref"] = "./json/no-such-file.json"
    else:
        tree["channels"]["acks"]["address"] = 7
    (tmp_path / "asyncapi.yaml").write_text(yaml.safe_dump(tree))
    shutil.copytree(SCHEMAS / "json", tmp_path / "json")
    assert complaints(parse(parser, tmp_path / "asyncapi.yaml"))


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((CHECK / "package-lock.json").read_text())
    assert all("resolved" not in package for package in lock["packages"].values())
    assert all("integrity" in package for name, package in lock["packages"].items() if name)
