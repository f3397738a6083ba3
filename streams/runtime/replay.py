"""Replay recorded input through a planner: the same records, on the recorded time, give the same bytes."""

import heapq
from collections.abc import Iterator
from pathlib import Path

from headrace.connectors.sources.fpm_packer import COMPONENTS, Route
from headrace.connectors.sources.replay_fpm import fpm_batches, traffic_windows
from headrace.schemas.base import Record
from headrace.schemas.cloudevents import event_time
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.streams import DAY
from headrace.streams.planner import Planner
from headrace.streams.runtime.offline import drive
from headrace.streams.runtime.profiles import profiles_known
from headrace.streams.runtime.warmup import warm_up
from headrace.streams.settings import Settings

LONGEST_S = 31 * DAY


def replay(settings: Settings) -> Iterator[tuple[float, Record]]:
    """What the planner says to the recorded input, with the recorded time of saying it.

    Dead letters of the source come out as they are. Raises ConfigError when a file is missing or is no recording.
    """
    timed = [(_recorded_at(record), record) for record in _recorded(settings)]
    if not timed:
        raise ConfigError("sources.replay: the recordings hold nothing")
    lasts_s = max(at for at, _ in timed) - timed[0][0]
    if lasts_s > LONGEST_S:
        raise ConfigError(
            f"sources.replay: the recordings last {lasts_s / DAY:.0f} days, above {LONGEST_S / DAY:.0f}: one of their "
            f"times is wrong, or they do not belong together"
        )
    planner = Planner(settings.planner, settings.edges.dgd, start=timed[0][0])
    warm_up(planner)
    planner.begin_epoch()
    known = profiles_known(settings.planner, settings.edges.dgd, timed[0][0])
    if known is not None:
        planner.handle(known, timed[0][0])
    letters = [pair for pair in timed if isinstance(pair[1], DeadLetter)]
    inputs = [pair for pair in timed if not isinstance(pair[1], DeadLetter)]
    said = drive(planner, inputs, until=timed[-1][0])
    yield from heapq.merge(letters, said, key=lambda pair: pair[0])


def _recorded_at(record: Record) -> float:
    """When it was recorded, seconds. What an engine's own clock says may be anything."""
    return record.received_at if isinstance(record, FpmBatch) else event_time(record)


def _recorded(settings: Settings) -> Iterator[Record]:
    """Both recordings, merged by time; at one time the metrics come first."""
    edges = settings.edges
    source, fpm = edges.sources.replay, edges.sources.dynamo_fpm
    if source is None or not (source.fpm or source.metrics):
        raise ConfigError("sources.replay names no recording: give fpm (a file), metrics (a folder), or both")
    components = (fpm.components if fpm else None) or COMPONENTS[settings.planner.mode]
    windows: Iterator[Record] = traffic_windows(Path(source.metrics), edges.dgd) if source.metrics else iter(())
    routes = (Route(settings.dynamo_namespace, edges.dgd, components),)
    batches: Iterator[Record] = fpm_batches(Path(source.fpm), routes) if source.fpm else iter(())
    return heapq.merge(windows, batches, key=_recorded_at)
