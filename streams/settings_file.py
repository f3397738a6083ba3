"""The mapping in a configuration file: YAML or JSON, or JSON given in the place of a file's name."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from headrace.schemas.errors import ConfigError


class _OnceLoader(yaml.SafeLoader):
    """YAML as it should be: a key that stands twice in one mapping is an error, not a silent choice of the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} stands there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise yaml.YAMLError(f"{next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return found


def _parsed(text: str) -> Any:
    """JSON is read as JSON: to YAML, a tab is an error in it and 1e5 no number."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_once)
        except json.JSONDecodeError:
            pass  # YAML may begin like that too
    return yaml.load(text, Loader=_OnceLoader)


def read_file(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file, or in JSON given inline. Raises ConfigError naming the file."""
    inline = str(path).lstrip().startswith("{")
    try:
        text = str(path) if inline else Path(path).read_text(encoding="utf-8")
        raw = _parsed(text)
    except OSError as e:
        raise ConfigError(f"configuration file {path} cannot be read: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as e:
        raise ConfigError(f"configuration file {path} is not YAML or JSON: {' '.join(str(e).split())}") from e
    if raw is None:
        raise ConfigError(f"configuration file {path} is empty: write `dgd: NAMESPACE/NAME` into it, or give no file")
    if not isinstance(raw, dict):
        raise ConfigError(f"configuration file {path} must hold a mapping of names to values, not {type(raw).__name__}")
    for key in raw:
        if not isinstance(key, str):
            raise ConfigError(f"configuration file {path} has the key {key!r}, which is no text: put it in quotes")
    return raw
