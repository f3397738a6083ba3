"""A connection that comes back for ever. Each life of it is a Session, and nothing outlives its session."""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from nats import errors
from nats.aio.client import Client

from headrace.connectors.bus.nats.options import NatsOptions
from headrace.connectors.bus.nats.replies import Replies
from headrace.schemas.errors import BusError

log = logging.getLogger(__name__)

_NO_TLS = "the server offers no TLS, which it should"
_LONGEST_WAIT_S = 1.0
_LOOK_EVERY_S = 0.5
_PENDING_BYTES = 64 * 1024 * 1024
_DENIED = "permissions violation"
_REFUSED = ("authorization", "authentication", "certificate", "no tls")


class _Client(Client):
    """nats-py loses its connection over a header that it cannot read, and again each time when that message is read.

    Here such a message comes without headers.
    """

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (IndexError, ValueError) as e:
            log.warning("the headers of a message are no NATS headers (%s): %r", e, headers[:40])
            return None


class _TlsClient(_Client):
    """nats-py goes on in plain text, password included, where a server does not ask for TLS. This one does not."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if not (info.get("tls_required") or info.get("tls_available")):
            raise errors.Error(_NO_TLS)
        info["tls_required"] = True
        await super()._process_info(info, initial_connection)


class Session:
    """One live connection. When it breaks, `lost` is set and every open question fails at once.

    nats-py's own reconnecting is off: it would send what was written before the break after it, out of order with what
    is sent again; and a server's refusal would end it for good.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.replies = Replies(client)
        self.lost = asyncio.Event()
        self._watchers: set[Callable[[], None]] = set()

    @property
    def live(self) -> bool:
        return not self.lost.is_set() and self.client.is_connected

    @property
    def max_payload(self) -> int:
        return self.client.max_payload

    def watch(self, lost: Callable[[], None]) -> None:
        """Have `lost` called when this session ends."""
        self._watchers.add(lost)

    def unwatch(self, lost: Callable[[], None]) -> None:
        self._watchers.discard(lost)

    def lose(self) -> None:
        self.lost.set()
        self.replies.lose()
        for lost in list(self._watchers):
            lost()


class Connection:
    """Keeps a session open to one of the servers, until it is closed."""

    def __init__(self, options: NatsOptions) -> None:
        self._options = options
        self._tls = options.ssl_context()
        self._servers = list(options.servers)
        self._session: Session | None = None
        self._arrived = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closing = False
        self._last_error = "no answer"
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        return self._session is not None and self._session.live

    async def open(self) -> None:
        """Connect for the first time. Raises BusError after the patience, at once when the server refuses us."""
        if self._keeper is not None:
            return
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._options.patience_s
        wait_s = 0.05
        while True:
            try:
                self._session = await self._connect()
                break
            except (errors.Error, OSError, TimeoutError) as e:
                if _is_refusal(self._last_error, e):
                    raise BusError(
                        f"NATS at {self._options.address} refuses us: {self._last_error}. "
                        f"Check user, token, credentials or nkey, and the TLS files"
                    ) from e
                if loop.time() + wait_s > give_up:
                    raise self._unreachable() from e
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S / 4)
        self._closing = False
        self._arrived.set()
        self._keeper = asyncio.create_task(self._keep(), name="nats connection")

    async def close(self) -> None:
        self._closing = True
        if self._keeper is not None:
            await _ended(self._keeper)
            self._keeper = None
        session, self._session = self._session, None
        self._arrived.set()
        if session is not None:
            await _dispose(session.client)
            session.lose()

    async def session(self, give_up_at: float | None = None) -> Session:
        """The live session; waits for one until `give_up_at` (loop time), then raises BusError."""
        while True:
            if self._session is not None and self._session.live:
                return self._session
            if self._closing or self._keeper is None:
                raise BusError(f"the bus to NATS at {self._options.address} is not open: await open() first")
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(give_up_at):
                    await self._arrived.wait()
            except TimeoutError as e:
                raise self._unreachable() from e

    async def suspect(self, session: Session) -> None:
        """Something did not answer in time: give the session up unless the server answers a ping."""
        try:
            await session.client.flush(timeout=2)
        except (errors.Error, OSError, TimeoutError):
            if not session.lost.is_set():
                log.warning("NATS at %s does not answer: connecting anew", self._options.address)
                session.lose()

    async def _keep(self) -> None:
        while True:
            session = self._session
            if session is not None:
                await _end_of(session)
                self._background(_dispose(session.client))
                self._session = None
                log.warning("lost NATS at %s: %s", self._options.address, self._last_error)
            self._session = await self._connect_again()
            self._arrived.set()
            log.info("connected to NATS at %s again", self._options.address)

    async def _connect_again(self) -> Session:
        wait_s, said = 0.02, ""
        while True:
            try:
                return await self._connect()
            except Exception as e:  # noqa: BLE001  # this loop keeps the process connected, whatever nats-py raises
                if not isinstance(e, errors.Error | OSError):
                    self._last_error = f"{e!r}"
                if said != self._last_error:
                    said = self._last_error
                    log.warning("NATS at %s cannot be reached yet: %s", self._options.address, said)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _connect(self) -> Session:
        """One try at every server. Raises what nats-py raises; `_last_error` says why."""
        options = self._options
        client = _TlsClient() if self._tls else _Client()
        session = Session(client)

        async def failed(error: Exception) -> None:
            self._last_error = f"{error}" or type(error).__name__
            if _DENIED in self._last_error.lower():
                log.error("NATS at %s: %s", options.address, self._last_error)
                session.replies.deny(self._last_error.lower())

        async def ended() -> None:
            session.lose()

        try:
            await client.connect(
                servers=self._servers,
                name=options.name,
                error_cb=failed,
                closed_cb=ended,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=5,
                ping_interval=5,
                flush_timeout=5,
                pending_size=_PENDING_BYTES,
                inbox_prefix=options.inbox_prefix,
                tls=self._tls,
                tls_hostname=options.tls_hostname,
                user=options.user,
                password=options.password,
                token=options.token,
                user_credentials=str(options.credentials) if options.credentials else None,
                nkeys_seed_str=options.seed(),
            )
            if not client.is_connected:
                raise errors.Error("the server closed the connection during the handshake")
            await session.replies.start()
        except BaseException:
            self._background(_dispose(client))
            raise
        for server in client.discovered_servers:
            if server.geturl() not in self._servers:
                self._servers.append(server.geturl())
        return session

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _unreachable(self) -> BusError:
        options = self._options
        certificate = " Does it ask for a client certificate (cert and key)?" if self._tls and not options.cert else ""
        return BusError(
            f"NATS at {options.address} could not be reached within {options.patience_s:g} s "
            f"({self._last_error}): is the server running, and is the address right?{certificate}"
        )


async def _ended(task: "asyncio.Task[None]") -> None:
    """Cancel a task until it has ended: nats-py's `wait_for` may swallow a cancellation on Python 3.11."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=1.0)


async def _end_of(session: Session) -> None:
    """Until a session is over. nats-py usually says so; a look now and then finds one that died without a word."""
    while session.live:
        try:
            async with asyncio.timeout(_LOOK_EVERY_S):
                await session.lost.wait()
        except TimeoutError:
            continue
    session.lose()


async def _dispose(client: Client) -> None:
    """Close a client, however stuck it is."""
    try:
        async with asyncio.timeout(2):
            await client.close()
    except (errors.Error, OSError, TimeoutError, AssertionError) as e:  # nats-py asserts that connecting had begun
        log.debug("closing a broken NATS connection: %s", e)


def _is_refusal(said: str, error: BaseException) -> bool:
    return isinstance(error, ssl.SSLError) or any(word in said.lower() for word in _REFUSED)
