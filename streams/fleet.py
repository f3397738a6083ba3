"""Which DGDs the processes of one configuration plan, and with which settings each.

    dgds:
      ml/llama-70b: {ttft_ms: 300}   # what differs from the keys at the top
      ml/*: {}                       # whoever else begins to speak in ml

A name is planned from the start, a pattern as soon as a DGD that fits it speaks on the streams. For each DGD its name
counts before patterns, and those in the order in which they stand there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.schemas.base import is_dgd
from headrace.schemas.errors import ConfigError
from headrace.streams.settings import DEFAULT_DGD, Settings, put, settings

_FOR_ALL = ("bus", "clock", "metrics", "shards", "simulator", "dgds", "dgd")
_WILD = "*?["


def is_pattern(name: str) -> bool:
    return any(c in name for c in _WILD)


@dataclass(frozen=True, slots=True)
class Fleet:
    """`names` are planned from the start, `patterns` are looked for; `alone` is the DGD of a fleet of one."""

    common: Settings
    names: tuple[str, ...]
    patterns: tuple[str, ...]

    @classmethod
    def of(cls, common: Settings) -> "Fleet":
        """The fleet of a configuration. Raises ConfigError for a DGD that could not be planned with it."""
        entries = common.edges.dgds
        named = [name for name in entries if not is_pattern(name)]
        if common.edges.dgd != DEFAULT_DGD or not entries:
            named.insert(0, common.edges.dgd)
        names = tuple(dict.fromkeys(named))
        fleet = cls(common, names, tuple(name for name in entries if is_pattern(name)))
        fleet._check()
        return fleet

    @property
    def alone(self) -> str | None:
        return self.names[0] if len(self.names) == 1 and not self.patterns else None

    @property
    def group(self) -> str:
        """Processes of one group take over from each other: as configured, of a fleet of one its DGD, else `main`."""
        if self.common.edges.shards.group is not None:
            return self.common.edges.shards.group
        return "main" if self.alone is None else _safe(self.alone)

    def matches(self, dgd: str) -> bool:
        """Is this one of ours?"""
        return dgd in self.names or any(fnmatchcase(dgd, pattern) for pattern in self.patterns)

    def settings_of(self, dgd: str) -> Settings:
        """The settings of one DGD. Raises ConfigError naming its entry."""
        common = self.common
        if not common.edges.dgds:
            return common
        entry = self._entry(dgd)
        differs: Mapping[str, Any] = common.edges.dgds.get(entry) or {}
        where = f"{common.path + ': ' if common.path else ''}dgds.{entry}"
        for key in _FOR_ALL:
            if key in differs:
                raise ConfigError(f"{where}: {key} is for all DGDs of a process; it belongs to the top of the file")
        found = self._with(differs, dgd, where)
        return _in_its_own_namespace(found) if self.alone is None else found

    def _with(self, differs: Mapping[str, Any], dgd: str, where: str) -> Settings:
        raw = {**msgspec.to_builtins(self.common.planner), **msgspec.to_builtins(self.common.edges), "dgds": {}}
        for key, value in {**differs, "dgd": dgd}.items():
            put(raw, key, value)
        return settings(raw, where)

    def _entry(self, dgd: str) -> str:
        if dgd in self.common.edges.dgds:
            return dgd
        return next((p for p in self.patterns if fnmatchcase(dgd, p)), dgd)

    def _check(self) -> None:
        for name in self.names:
            if not is_dgd(name):
                raise ConfigError(
                    f"dgds names {name!r}: write NAMESPACE/NAME, or a pattern of it, for example ml/llama-70b or ml/*"
                )
            self.settings_of(name)
        for pattern in self.patterns:
            if pattern.count("/") != 1:
                raise ConfigError(f"dgds has the pattern {pattern!r}: write NAMESPACE/NAME with *, for example ml/*")
            self._check_shared(pattern)

    def _check_shared(self, pattern: str) -> None:
        """What belongs to one DGD alone cannot be had by all that fit a pattern."""
        namespace, _, name = pattern.partition("/")
        example = "/".join("example" if is_pattern(part) else part for part in (namespace, name))
        found = self._with(self.common.edges.dgds.get(pattern) or {}, example, f"dgds.{pattern}")
        sources = found.edges.sources
        for key, given in (
            ("sources.frontend", sources.frontend),
            ("sources.dynamo_fpm.namespace", sources.dynamo_fpm and sources.dynamo_fpm.namespace),
        ):
            if given is not None:
                raise ConfigError(
                    f"{key} is of one DGD, and dgds.{pattern} stands for many: give it in the entry of the DGD, "
                    f"dgds.NAMESPACE/NAME"
                )


def _in_its_own_namespace(found: Settings) -> Settings:
    """Among many DGDs the Dynamo namespace of each is its name, unless it says otherwise."""
    fpm = found.edges.sources.dynamo_fpm
    if fpm is None or fpm.namespace is not None:
        return found
    sources = replace(found.edges.sources, dynamo_fpm=replace(fpm, namespace=found.edges.dgd.partition("/")[2]))
    return replace(found, edges=replace(found.edges, sources=sources))


def _safe(dgd: str) -> str:
    """A DGD's name as part of a key in a bucket, different for different names."""
    text = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in dgd)[:100]
    return f"{text}-{blake2b(dgd.encode('utf-8', 'surrogatepass'), digest_size=3).hexdigest()}"
