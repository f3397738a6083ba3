"""Is a library of an extra installed? Asked without importing it: some take seconds."""

from importlib.util import find_spec

from headrace.schemas.errors import ConfigError


def has(library: str) -> bool:
    return find_spec(library) is not None


def need(library: str, name: str) -> None:
    """Raises ConfigError, naming the extra, where the forecaster `name` cannot run."""
    if not has(library):
        raise ConfigError(f"load_predictor {name!r} needs {library}: pip install headrace[{name}]")
