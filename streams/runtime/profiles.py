"""Load what is known of engines before they serve, and put it on the stream where it is not what stands there.

The planner learns it from the stream like any other input, so a recovery and a replay know exactly what was known.
"""

import asyncio
import logging
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from headrace.connectors.bus.records import RecordBus
from headrace.connectors.profiles.aic import aic_profile
from headrace.connectors.profiles.benchmark import POINT_TYPES, read_benchmark
from headrace.connectors.profiles.bootstrap import Bootstrap, Reader, first_available
from headrace.connectors.profiles.files import MOST_BYTES, read_profile
from headrace.schemas.base import AGG, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.engine_profiles import EngineProfiles, RoleProfile, Source
from headrace.schemas.errors import BusError, ConfigError, RecordError
from headrace.schemas.profile import EngineProfile
from headrace.schemas.streams import PROFILES
from headrace.streams.agents.profiles import said
from headrace.streams.runtime.clock import Clock

log = logging.getLogger("headrace.profiles")

RETRY_S = 1.0


@dataclass(slots=True)
class ProfilePublisher:
    """Loads once, beside the event loop."""

    records: RecordBus
    dgd: str
    config: PlannerConfig
    clock: Clock

    async def run(self, stop: asyncio.Event) -> None:
        """Publish if there is news, then wait for `stop`. Where the bus is away it is tried again."""
        found = await loaded(self.config)
        for line in refusals(self.config, found):
            log.warning("%s: %s", self.dgd, line)
        while not stop.is_set():
            try:
                await self._publish(found)
                break
            except BusError as e:
                log.warning("%s: what is known of its engines cannot be said yet: %s", self.dgd, e)
                await asyncio.sleep(RETRY_S)
        await stop.wait()

    async def _publish(self, found: Mapping[Role, RoleProfile]) -> None:
        try:
            last = await self.records.last(PROFILES, self.dgd)
        except RecordError as e:
            log.warning("%s: what stands on the stream of profiles is no record, and is replaced: %s", self.dgd, e)
            last = None
        before = last[0].roles if last is not None and isinstance(last[0], EngineProfiles) else {}
        if before == found or not (before or _something(found) or refusals(self.config, found)):
            return
        for role, profile in found.items():
            log.info("%s: %s", self.dgd, said(role, profile))
        await self.records.publish(EngineProfiles(dgd=self.dgd, at=self.clock.now(), roles=dict(found)))


async def loaded(config: PlannerConfig) -> dict[Role, RoleProfile]:
    """`profiles_of`, in a thread; where AI Configurator is asked in a process, which takes its tables with it.

    Its import and its sweep hold the interpreter for hundreds of milliseconds, and a tick would wait for them.
    """
    if config.aic_interpolation is None:
        return await asyncio.to_thread(profiles_of, config)
    context = multiprocessing.get_context("spawn")  # a fork would copy sockets and locks of the event loop
    pool = ProcessPoolExecutor(1, mp_context=context)
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, profiles_of, config)
    except BrokenProcessPool:
        found = await asyncio.to_thread(profiles_of, msgspec.structs.replace(config, aic_interpolation=None))
        died = {str(Source.AIC): "AI Configurator's process died: memory may have been short"}
        return {role: msgspec.structs.replace(p, not_used=p.not_used | died) for role, p in found.items()}
    finally:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()  # shutdown alone would wait for a sweep at the end of the program
        pool.shutdown(wait=False, cancel_futures=True)


def profiles_known(config: PlannerConfig, dgd: str, at: float) -> EngineProfiles | None:
    """The record for a planner without a bus (a simulation, a replay); None where nothing is known."""
    found = profiles_of(config)
    for line in refusals(config, found):
        log.warning("%s: %s", dgd, line)
    return EngineProfiles(dgd=dgd, at=at, roles=found) if _something(found) else None


def profiles_of(config: PlannerConfig) -> dict[Role, RoleProfile]:
    """For each planned role the first source that knows its engines. What fails is said in `not_used`."""
    return {role: _role_profile(first_available(role, readers_of(config, role))) for role in config.roles}


def readers_of(config: PlannerConfig, role: Role) -> dict[Source, Reader]:
    """The sources that are configured for a role."""
    readers: dict[Source, Reader] = {}
    benchmark = (config.benchmark_files or {}).get(role)
    if benchmark is not None:
        readers[Source.BENCHMARK] = partial(_benchmark, benchmark, role)
    if config.aic_interpolation is not None:
        readers[Source.AIC] = partial(aic_profile, config.aic_interpolation, role)
    if config.profile_results_dir is not None:
        readers[Source.FILES] = partial(read_profile, config.profile_results_dir)
    return readers


def refusals(config: PlannerConfig, found: Mapping[Role, RoleProfile]) -> list[str]:
    """For each role whose sources were asked for and had nothing, why; the default directory need not be there."""
    order = [str(source) for source in Source]
    lines = []
    for role, profile in found.items():
        asked = order[: order.index(profile.source)]
        why = [profile.not_used[s] for s in asked if s in readers_of(config, role) and not _only_default(config, s)]
        if why:
            lines.append(f"{role} speed from {profile.source}, because of {'; '.join(why)}")
    return lines


def _only_default(config: PlannerConfig, source: str) -> bool:
    folder = config.profile_results_dir
    return source == Source.FILES and folder == PlannerConfig().profile_results_dir and not Path(folder or "").is_dir()


def _something(found: Mapping[Role, RoleProfile]) -> bool:
    return any(profile.source != Source.LIVE for profile in found.values())


def _role_profile(found: Bootstrap) -> RoleProfile:
    return RoleProfile(
        source=found.source, profile=found.profile, not_used={str(s): why for s, why in found.not_used.items()}
    )


def _benchmark(path: str, role: Role) -> EngineProfile:
    """The FPMs in a file. An aggregated engine is asked for both kinds of points. Raises ConfigError."""
    try:
        size = Path(path).stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(f"benchmark_files: {path} has {size} bytes, and a benchmark at most {MOST_BYTES}")
        answer = Path(path).read_bytes()
    except OSError as e:
        raise ConfigError(f"benchmark_files: {path} cannot be read ({e.strerror or e}): check the path") from e
    return EngineProfile(fpms=read_benchmark(answer, POINT_TYPES if role == AGG else (role,)).fpms)
