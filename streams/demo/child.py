"""A process of the demonstration: `python -m headrace.streams.demo.child MODULE ARGUMENTS...`, and MODULE runs.

The parent holds the other end of our standard input. When that ends, since the parent has, by whatever signal, so do
we: in peace as on SIGTERM, and after a while in any case.
"""

import os
import runpy
import signal
import sys
import threading
import time

PEACE_S = 8.0


def watch(stdin: int) -> None:
    """End this process when its standard input does."""
    while os.read(stdin, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PEACE_S)
    os._exit(1)


def main() -> None:
    threading.Thread(target=watch, args=(0,), daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
