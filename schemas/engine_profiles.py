"""EngineProfiles: what was known of the engines of a DGD before they served, and where from.

Written by the process that plans, when it starts and finds something else than the stream has; so a recovery and a
replay begin with the same knowledge. Whoever has measured engines by other means may write one too.
"""

from enum import StrEnum

import msgspec

from headrace.schemas.base import Name, Record, Role, Seconds
from headrace.schemas.profile import EngineProfile


class Source(StrEnum):
    """Where speed is known from, the best first: the engine itself, tables of its GPU, a sweep, and time."""

    BENCHMARK = "get_perf_metrics"
    AIC = "aic_interpolation"
    FILES = "profile_results_dir"
    LIVE = "live FPMs"


class RoleProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one role's engines."""

    source: Name  # get_perf_metrics, aic_interpolation, profile_results_dir, "live FPMs" (nothing), or another's name
    profile: EngineProfile = EngineProfile()  # as the source has it
    not_used: dict[str, str] = {}  # each other source, and why it was not used


class EngineProfiles(Record, frozen=True, kw_only=True, tag="headrace.profiles.v1"):
    at: Seconds  # when it was read, seconds since 1970, UTC; an older record changes nothing
    roles: dict[Role, RoleProfile]  # those that it says something about; the others stay as they are
