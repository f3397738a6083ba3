"""Keeps an embedded nats-server only as long as its parent lives. Run by path, standard library alone.

Usage: python -I -S embedded_guard.py STOP_SECONDS COMMAND...

Starts COMMAND and prints its process id. When standard input ends (the parent asks, or has died by any signal) or the
parent is another process than at the start (a forked child may hold our input open), COMMAND gets SIGTERM, and SIGKILL
after STOP_SECONDS. Exits with COMMAND's status. On Linux the kernel also kills COMMAND when this process is killed;
elsewhere the store's lock, which COMMAND inherits, keeps a second server away.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
LOOK_EVERY_S = 0.5


def die_with_guard() -> None:
    """In the child, before exec: have the kernel end it with this process. This process has one thread."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for_end(child: "subprocess.Popen[bytes]", parent: int) -> None:
    """Return when the parent asks or is gone, or when the child has ended."""
    while child.poll() is None and os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], LOOK_EVERY_S)
        if readable and not os.read(0, 4096):
            return


def stop(child: "subprocess.Popen[bytes]", patience_s: float) -> None:
    """SIGTERM, then SIGKILL."""
    if child.poll() is not None:
        return
    child.terminate()
    give_up = time.monotonic() + patience_s
    while child.poll() is None:
        if time.monotonic() > give_up:
            child.kill()
            child.wait()
            return
        time.sleep(0.002)


def main() -> int:
    parent = os.getppid()
    linux = sys.platform == "linux"
    keep = tuple(int(fd) for fd in os.environ.pop("HEADRACE_KEEP_FDS", "").split(",") if fd)
    child = subprocess.Popen(
        sys.argv[2:],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=keep,
        preexec_fn=die_with_guard if linux else None,
    )
    for fd in keep:
        os.close(fd)  # the store is free as soon as COMMAND is gone
    os.write(1, b"%d\n" % child.pid)
    wait_for_end(child, parent)
    stop(child, float(sys.argv[1]))
    return child.returncode


if __name__ == "__main__":
    sys.exit(main())
