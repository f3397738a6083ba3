"""Writes what is generated from the records: asyncapi.yaml, json/*.json, and the marked parts of the documentation.

python -m headrace.schemas.generate            write what is stale
python -m headrace.schemas.generate --check    name what is stale, write nothing; exit status 1 if anything is
"""

import argparse
import sys
from pathlib import Path

from headrace.schemas import asyncapi, configtable, doctables, jsonschema

FOLDER = Path(__file__).resolve().parent
DOCS = FOLDER.parent / "docs"


def expected(folder: Path = FOLDER, docs: Path = DOCS) -> dict[Path, str]:
    """What each generated file should hold. Documents are there only where the repository is."""
    sources = {f"headrace.schemas.{path.stem}": path.read_text("utf-8") for path in FOLDER.glob("*.py")}
    schemas = jsonschema.documents(sources)
    files = {folder / "json" / f"{name}.json": jsonschema.to_text(schema) for name, schema in schemas.items()}
    files[folder / "asyncapi.yaml"] = asyncapi.to_yaml(asyncapi.document())
    for name in doctables.DOCUMENTS:
        if (docs / name).is_file():
            files[docs / name] = doctables.fill((docs / name).read_text("utf-8"), schemas)
    page = docs / "configuration.md"
    if page.is_file():
        files[page] = configtable.fill(page.read_text("utf-8"), sources["headrace.schemas.config"])
    return files


def stale(files: dict[Path, str], folder: Path = FOLDER) -> dict[Path, str | None]:
    """The files that are not as they should be, and what they should hold: None where nothing generates them."""
    wrong: dict[Path, str | None] = {
        path: text for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text
    }
    return wrong | {path: None for path in (folder / "json").glob("*.json") if path not in files}


def write(wrong: dict[Path, str | None]) -> None:
    for path, text in wrong.items():
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.schemas.generate", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if anything is stale")
    check: bool = parser.parse_args(arguments).check
    wrong = stale(expected())
    for path in sorted(wrong):
        print(f"{'stale' if check else 'written'}: {path.relative_to(FOLDER.parent)}")
    if check and wrong:
        print("run: python -m headrace.schemas.generate", file=sys.stderr)
        return 1
    write(wrong)
    return 0


if __name__ == "__main__":
    sys.exit(main())
