"""The stream table on JetStream: creating the streams and migrating their limits."""

import asyncio
import time

from nats.aio.msg import Msg

from headrace.connectors.bus.base import DUPLICATE_WINDOW_S, StreamInfo
from headrace.connectors.bus.nats.api import STREAM_NOT_FOUND, JetStreamApi, JetStreamError, Json, NoResponders, status
from headrace.connectors.bus.nats.subjects import Subjects, key_of
from headrace.schemas.errors import BusError
from headrace.schemas.streams import MiB, Stream

_NAME_IN_USE = 10058
_SUBJECTS_OVERLAP = 10065
_NO_STORAGE = (10023, 10028, 10047)
_NANOSECONDS = 1_000_000_000
_UNLIMITED = -1
_TRIES = 10


def limits_of(stream: Stream, subjects: Subjects) -> Json:
    """The part of a JetStream stream's configuration that the stream table decides."""
    age = 0.0 if stream.last_only or stream.keep_s is None else stream.keep_s
    window = min(DUPLICATE_WINDOW_S, age or DUPLICATE_WINDOW_S)
    return {
        "subjects": [subjects.all_of(stream.name)],
        "retention": "limits",
        "discard": "old",
        "storage": "memory" if stream.in_memory else "file",
        "max_age": int(age * _NANOSECONDS),
        "max_bytes": _UNLIMITED if stream.last_only else stream.keep_bytes,
        "max_msgs": _UNLIMITED,
        "max_msgs_per_subject": 1 if stream.last_only else _UNLIMITED,
        "duplicate_window": int(window * _NANOSECONDS),
        "allow_direct": True,
        **subjects.settings(stream),
    }


class Streams:
    """Creates and migrates streams, and remembers them: one in memory is gone with its server and is made again."""

    def __init__(self, api: JetStreamApi, subjects: Subjects, replicas: int | None) -> None:
        self._api = api
        self._subjects = subjects
        self.replicas = replicas
        self._ensured: dict[str, Stream] = {}

    async def ensure(self, stream: Stream) -> None:
        """Create it, or give it the table's limits. Raises BusError when a foreign stream is in the way."""
        name = self._subjects.stream_name(stream.name)
        limits = limits_of(stream, self._subjects)
        for _ in range(_TRIES):  # another process may create, change or delete it between our steps
            try:
                found = await self._api.request(f"STREAM.INFO.{name}")
                await self._migrate(name, found["config"], limits)
                break
            except JetStreamError as e:
                if e.err_code != STREAM_NOT_FOUND:
                    raise self._explain(name, limits, e) from e
            if await self._create(name, stream, limits):
                break
            await asyncio.sleep(0.02)
        else:
            raise BusError(f"stream {name} is created and deleted by others while we try: stop them, then try again")
        self._ensured[stream.name] = stream

    async def describe(self, stream: str) -> Json:
        """JetStream's description of a stream, which is made again when it was ensured here and is gone.

        Raises BusError when it does not exist.
        """
        name = self._subjects.stream_name(stream)
        for _ in range(2):
            try:
                return await self._api.request(f"STREAM.INFO.{name}")
            except JetStreamError as e:
                if e.err_code != STREAM_NOT_FOUND:
                    raise BusError(f"stream {name}: {e}") from e
            if stream not in self._ensured:
                break
            await self.ensure(self._ensured[stream])
        raise BusError(f"stream {name} does not exist: call ensure, or check the bus's prefix")

    async def info(self, stream: str) -> StreamInfo:
        """What a stream holds. Raises BusError when it does not exist."""
        state = (await self.describe(stream))["state"]
        return StreamInfo(
            name=stream,
            messages=state["messages"],
            size_bytes=state["bytes"],
            first_position=state["first_seq"],
            last_position=state["last_seq"],
            keys=state.get("num_subjects", 0),
        )

    async def keys(self, stream: str) -> set[str]:
        """The keys that have messages. Raises BusError when there is no such stream.

        Asked of the stream's description: nats-py's `keys()` of a bucket leaves a consumer behind at every call.
        """
        name, found = self._subjects.stream_name(stream), set[str]()
        while True:
            body = {"subjects_filter": self._subjects.all_of(stream), "offset": len(found)}
            try:
                info = await self._api.request(f"STREAM.INFO.{name}", body)
            except JetStreamError as e:
                raise BusError(f"stream {name}: {e}; call ensure, or check the bus's prefix") from e
            page = info["state"].get("subjects") or {}
            found.update(map(key_of, page))
            if not page or len(found) >= info.get("total", 0):
                return found

    async def newest(self, stream: str, key: str) -> Msg | None:
        """The newest message of a key by a direct get, or None. Raises BusError when there is no such stream."""
        name = self._subjects.stream_name(stream)
        for _ in range(_TRIES):
            try:
                found = await self._api.raw(f"DIRECT.GET.{name}.{self._subjects.subject(stream, key)}", b"", 0)
                return None if status(found) == "404" else found
            except NoResponders:
                await self.describe(stream)
            await asyncio.sleep(0.1)
        raise BusError(f"stream {name} does not answer direct gets: call ensure, which allows them")

    async def _create(self, name: str, stream: Stream, limits: Json) -> bool:
        config = {"name": name, "description": stream.what, "num_replicas": self.replicas or 1, **limits}
        if stream.in_memory:
            config["first_seq"] = int(time.time() * 1e6)  # positions rise even when the server forgot the stream
        try:
            await self._api.request(f"STREAM.CREATE.{name}", config)
        except JetStreamError as e:
            if e.err_code == _NAME_IN_USE:
                return False
            if e.err_code == _SUBJECTS_OVERLAP:
                raise await self._overlap(name, limits, e) from e
            raise self._explain(name, limits, e) from e
        return True

    async def _migrate(self, name: str, config: Json, limits: Json) -> None:
        if config["subjects"] != limits["subjects"]:
            raise BusError(
                f"stream {name} exists with the subjects {config['subjects']}, not {limits['subjects']}: it is not "
                f"ours. Choose another prefix for the bus, or delete that stream"
            )
        if config["storage"] != limits["storage"]:
            raise BusError(
                f"stream {name} is in {config['storage']} storage and should be in {limits['storage']}: NATS cannot "
                f"change that. Back it up and delete it; it is created anew at the next start"
            )
        wanted = {**config, **limits}
        if wanted != config:
            await self._api.request(f"STREAM.UPDATE.{name}", wanted)

    async def _overlap(self, name: str, limits: Json, e: JetStreamError) -> BusError:
        subject = limits["subjects"][0]
        names = (await self._api.request("STREAM.NAMES", {"subject": subject})).get("streams") or ["unknown"]
        return BusError(
            f"stream {name} cannot be created: its subjects {subject} are taken by stream {', '.join(names)}. "
            f"Choose another prefix for the bus, or remove those subjects there ({e})"
        )

    def _explain(self, name: str, limits: Json, e: JetStreamError) -> BusError:
        if e.err_code in _NO_STORAGE:
            return BusError(
                f"stream {name} needs {limits['max_bytes'] // MiB} MiB of {limits['storage']} storage, which the "
                f"server does not have: raise max_{limits['storage']}_store or the account's limits ({e})"
            )
        return BusError(f"stream {name} cannot be created or changed: {e}")
