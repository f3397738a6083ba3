"""What an operator should hear about a valid configuration: what is hardly meant, differs, or is not done here."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from headrace.schemas.config import ALIASES, PlannerConfig
from headrace.schemas.config_reference import DIFFERENCES, REFERENCE_KEYS

LEAST_TTFT_MS = 5.0  # below these no engine answers; seconds given as milliseconds do
LEAST_ITL_MS = 1.0


def config_notes(config: PlannerConfig, given: Collection[str], theirs: Mapping[str, Any]) -> Iterator[str]:
    """One text per matter. `given`: the keys that somebody set, in any spelling; `theirs`: see `accepted`."""
    yield from unit_traps(config)
    yield from reference_notes(theirs)
    if theirs:  # it was written for the reference
        yield from differences(config, given)


def unit_traps(config: PlannerConfig) -> Iterator[str]:
    """Targets that were meant in seconds: the command line of Dynamo 0.4 took 0.5 and 0.05."""
    targets = (("ttft_ms", config.ttft_ms, LEAST_TTFT_MS), ("itl_ms", config.itl_ms, LEAST_ITL_MS))
    for key, value, least in targets:
        if value < least:
            yield (
                f"{key} is {value:g} milliseconds; if seconds were meant, write {value * 1000:g} "
                "(the command line of Dynamo 0.4 spoke seconds)"
            )


def reference_notes(theirs: Mapping[str, Any]) -> Iterator[str]:
    """What stands in the place of the reference's own keys: of each that was set to something, then of the rest."""
    at_default = []
    for name, value in theirs.items():
        key = REFERENCE_KEYS[name]
        if value == key.default:
            at_default += [] if key.here.startswith("used as") else [name]
            continue
        ignored = key.refused(value)
        yield f"{name}: {key.here}" + (f"; ignored, for this planner only advises: {ignored}" if ignored else "")
    if at_default:
        yield (
            f"accepted without effect: {', '.join(at_default)}; they have the reference's defaults, and "
            "docs/configuration.md says what stands in their place"
        )


def differences(config: PlannerConfig, given: Collection[str]) -> Iterator[str]:
    """Where a default of ours makes another planner than the reference's would be."""
    named = {ALIASES.get(key, key) for key in given}
    has_effect = {"load_predictor": config.throughput_loop, "capacity_policy": config.optimization_target == "sla"}
    for key, (theirs, why) in DIFFERENCES.items():
        ours = getattr(config, key)
        if key not in named and has_effect[key] and ours != theirs:
            yield f"{key} is {ours!r} by default, where the reference does as with {theirs!r}: {why}"
