"""Opinions of one stage into one set of counts, as the reference merges them: `final` beats all bounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Bound(Enum):
    SET = "SET"
    AT_LEAST = "AT_LEAST"
    AT_MOST = "AT_MOST"


@dataclass(frozen=True, slots=True)
class Target:
    """`replicas` None: no opinion."""

    component: str
    replicas: int | None
    bound: Bound = Bound.SET


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a plugin says in a stage: nothing, targets, or a rejection with its reason."""

    source: str
    priority: int
    targets: tuple[Target, ...] = ()
    rejection: str | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Clamp:
    """A bound that moved a count, and whose it was."""

    component: str
    direction: str  # floor or ceiling
    source: str


@dataclass(frozen=True, slots=True)
class Merged:
    """`targets` None: rejected. Otherwise in the order in which components were named first; a `final` opinion that
    names one twice is kept as it is, and the last one counts."""

    targets: tuple[tuple[str, int], ...] | None
    source: str | None = "merged"
    rejection: str = ""
    final_from: str = ""
    dropped: tuple[str, ...] = ()  # components of a SET where none is allowed
    clamps: tuple[Clamp, ...] = ()


def merge(opinions: Sequence[Opinion], baseline: Mapping[str, int], *, set_allowed: bool = True) -> Merged:
    """A rejection stops; else the `final` of the smallest priority is the answer; else bounds around the best SET."""
    for opinion in opinions:
        if opinion.rejection is not None:
            return Merged(None, None, rejection=f"{opinion.source}: {opinion.rejection}")
    finals = [opinion for opinion in opinions if opinion.final and opinion.targets]
    if finals:
        return _final(min(finals, key=lambda o: o.priority), baseline, set_allowed)
    named, dropped = _named(opinions, set_allowed)
    counts, clamps = [], []
    for component in dict.fromkeys([t.component for t, _ in named] + list(baseline)):
        said = [(t, o) for t, o in named if t.component == component and t.replicas is not None]
        count, moved = _one(component, baseline.get(component, 0), said)
        counts.append((component, count))
        clamps += moved
    return Merged(tuple(counts), dropped=dropped, clamps=tuple(clamps))


def _named(opinions: Sequence[Opinion], set_allowed: bool) -> tuple[list[tuple[Target, Opinion]], tuple[str, ...]]:
    """Targets with who named them, and the components of the SETs that may not be."""
    every = [(target, opinion) for opinion in opinions for target in opinion.targets]
    named = [(t, o) for t, o in every if set_allowed or t.bound is not Bound.SET]
    return named, tuple(t.component for t, _ in every if t.bound is Bound.SET and not set_allowed)


def _final(opinion: Opinion, baseline: Mapping[str, int], set_allowed: bool) -> Merged:
    """Its targets as they are, whatever their bounds mean."""
    named, dropped = _named([opinion], set_allowed)
    counts = [(t.component, t.replicas) for t, _ in named if t.replicas is not None]
    rest = [(c, n) for c, n in baseline.items() if c not in dict(counts)]
    return Merged((*counts, *rest), opinion.source, final_from=opinion.source, dropped=dropped)


def _one(component: str, baseline: int, said: Sequence[tuple[Target, Opinion]]) -> tuple[int, list[Clamp]]:
    sets = [(o.priority, t.replicas) for t, o in said if t.bound is Bound.SET and t.replicas is not None]
    wanted = min(sets, key=lambda s: s[0])[1] if sets else baseline
    floors = [(t.replicas or 0, o.source) for t, o in said if t.bound is Bound.AT_LEAST]
    ceilings = [(t.replicas or 0, o.source) for t, o in said if t.bound is Bound.AT_MOST]
    floor = max(floors, key=lambda f: f[0], default=(0, ""))
    ceiling = min(ceilings, key=lambda c: c[0], default=None)
    found = max(floor[0], wanted if ceiling is None else min(ceiling[0], wanted))
    if found > wanted and floor[1]:
        return found, [Clamp(component, "floor", floor[1])]
    if found < wanted and ceiling is not None:
        return found, [Clamp(component, "ceiling", ceiling[1])]
    return found, []
