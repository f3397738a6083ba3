"""What is generated is current, and the generator says so when it is not."""

from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from headrace.schemas import generate
from headrace.schemas.asyncapi import document, to_yaml
from headrace.schemas.base import schema_of
from headrace.schemas.cloudevents import headers_for
from headrace.schemas.codec import plain
from headrace.schemas.doctables import fill
from headrace.schemas.errors import HeadraceError
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.streams import STREAMS

SCHEMAS = Path(__file__).parents[3] / "schemas"
DOCS = SCHEMAS.parent / "docs"


def asyncapi() -> Any:
    return yaml.safe_load((SCHEMAS / "asyncapi.yaml").read_text())


def test_every_generated_file_is_current() -> None:
    stale = sorted(str(path.relative_to(SCHEMAS.parent)) for path in generate.stale(generate.expected()))
    assert stale == [], "run: python -m headrace.schemas.generate"


def test_the_generated_parts_of_the_documents_are_looked_at() -> None:
    looked_at = set(generate.expected())
    assert {DOCS / "streams.md", DOCS / "decision-protocol.md", SCHEMAS / "asyncapi.yaml"} <= looked_at


@pytest.fixture
def elsewhere(tmp_path: Path) -> tuple[Path, Path]:
    """Folders for the schemas and the documents, with what is generated in them."""
    schemas, docs = tmp_path / "schemas", tmp_path / "docs"
    schemas.mkdir()
    docs.mkdir()
    (docs / "streams.md").write_text("Before.\n<!-- generated: stream-table -->\n<!-- end -->\nAfter.\n")
    generate.write(generate.stale(generate.expected(schemas, docs), schemas))
    return schemas, docs


def stale(elsewhere: tuple[Path, Path]) -> dict[Path, str | None]:
    return generate.stale(generate.expected(*elsewhere), elsewhere[0])


def test_what_was_written_is_not_stale(elsewhere: tuple[Path, Path]) -> None:
    assert stale(elsewhere) == {}
    assert "| `decisions` |" in (elsewhere[1] / "streams.md").read_text()


def test_a_changed_a_missing_and_a_left_over_file_are_stale(elsewhere: tuple[Path, Path]) -> None:
    schemas, docs = elsewhere
    (schemas / "asyncapi.yaml").write_text("asyncapi: 3.0.0\n")
    (schemas / "json" / "headrace.ack.v1.json").unlink()
    (schemas / "json" / "headrace.gone.v1.json").write_text("{}")
    (docs / "streams.md").write_text((docs / "streams.md").read_text().replace("`decisions`", "`decrees`"))
    names = {path.name for path in stale(elsewhere)}
    assert names == {"asyncapi.yaml", "headrace.ack.v1.json", "headrace.gone.v1.json", "streams.md"}
    generate.write(stale(elsewhere))
    assert stale(elsewhere) == {}
    assert not (schemas / "json" / "headrace.gone.v1.json").exists()
    assert (docs / "streams.md").read_text().startswith("Before.\n")
    assert (docs / "streams.md").read_text().endswith("\nAfter.\n")


def test_the_check_names_what_is_stale_and_fails(
    elsewhere: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {SCHEMAS / "asyncapi.yaml": "other"}
    monkeypatch.setattr(generate, "expected", lambda: files)
    monkeypatch.setattr(generate, "stale", lambda files: files)
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "stale: schemas/asyncapi.yaml\n"
    assert (SCHEMAS / "asyncapi.yaml").read_text() != "other"


def test_a_part_of_a_document_that_nobody_generates_is_an_error() -> None:
    with pytest.raises(HeadraceError, match="steam-table"):
        fill("<!-- generated: steam-table -->\n<!-- end -->", {})


def test_the_yaml_is_the_document_and_always_the_same() -> None:
    assert asyncapi() == document()
    assert to_yaml(document()) == to_yaml(document())
    assert "&id" not in to_yaml(document())


@pytest.mark.parametrize("stream", STREAMS)
def test_the_example_of_a_message_is_valid_against_its_schemas(stream: str) -> None:
    (reference,) = asyncapi()["channels"][stream]["messages"].values()
    message = asyncapi()["components"]["messages"][reference["$ref"].rpartition("/")[2]]
    (example,) = message["examples"]
    payload = msgspec.json.decode((SCHEMAS / message["payload"]["$ref"]).read_bytes())
    jsonschema.Draft202012Validator(payload).validate(example["payload"])
    jsonschema.Draft202012Validator(message["headers"]).validate(example["headers"])
    assert example["payload"] == plain(EXAMPLES[stream])
    assert example["headers"] == headers_for(EXAMPLES[stream], source=example["headers"]["ce-source"])
    assert message["name"] == schema_of(EXAMPLES[stream])


@pytest.mark.parametrize("stream", STREAMS)
def test_a_channel_tells_what_the_stream_table_tells(stream: str) -> None:
    channel = asyncapi()["channels"][stream]
    told, row = channel["x-headrace-stream"], STREAMS[stream]
    assert told["written-by"] == row.written_by
    assert told["may-write"] == row.may_write
    assert told["kept"] == row.kept
    assert told["delivery"] == row.delivery
    assert channel["bindings"]["kafka"]["topic"] == f"headrace.{stream}"
