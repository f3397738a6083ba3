"""The first source that knows an engine beforehand, and why the others were not used."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.engine_profiles import Source
from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import EngineProfile

FEWEST = 3  # points of a kind of work; fewer are no profile


Reader = Callable[[], EngineProfile]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Where the speed of a role is known from. `not_used` says for each other source why; LIVE has an empty profile."""

    role: Role
    source: Source
    profile: EngineProfile = field(default_factory=EngineProfile)
    not_used: Mapping[Source, str] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """One line for people."""
        others = "; ".join(f"{source}: {why}" for source, why in self.not_used.items())
        return f"{self.role} speed from {self.source}" + (f" ({others})" if others else "")


def first_available(role: Role, readers: Mapping[Source, Reader]) -> Bootstrap:
    """The first source, in the order of `Source`, whose profile covers the work of the role.

    A reader is called only when those before it had nothing; it raises ConfigError where it has nothing either. With no
    source left the speed is learned from live FPMs. An aggregated engine needs both kinds of work, so a source that has
    one is passed over: half a model would give capacities that nobody has measured.
    """
    not_used: dict[Source, str] = {}
    chosen: tuple[Source, EngineProfile] | None = None
    for source in Source:
        if source is Source.LIVE:
            break
        if chosen is not None:
            not_used[source] = f"{chosen[0]} came first"
        elif source not in readers:
            not_used[source] = "not configured"
        else:
            try:
                profile = readers[source]()
            except ConfigError as e:
                not_used[source] = str(e)
                continue
            why_not = _lacks(profile, role)
            if why_not:
                not_used[source] = why_not
            else:
                chosen = source, profile
    if chosen is None:
        return Bootstrap(role, Source.LIVE, not_used=not_used)
    return Bootstrap(role, *chosen, not_used)


def _lacks(profile: EngineProfile, role: Role) -> str:
    """What the profile has too few points of for this role; empty when it has enough."""
    work = [fpm.scheduled_requests for fpm in profile.fpms]
    found = {
        PREFILL: sum(1 for w in work if w.num_prefill_requests and not w.num_decode_requests)
        + (len(profile.prefill.isl) if profile.prefill else 0),
        DECODE: sum(1 for w in work if w.num_decode_requests and not w.num_prefill_requests)
        + (len(profile.decode.itl_s) if profile.decode else 0),
    }
    needs: Sequence[Role] = (PREFILL, DECODE) if role == AGG else (role,)
    few = [f"{found.get(need, 0)} {need} points" for need in needs if found.get(need, 0) < FEWEST]
    return f"{' and '.join(few)}, and at least {FEWEST} are needed" if few else ""
