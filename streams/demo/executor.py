"""The executor of the demonstration, as a process: `python -m headrace.streams.demo.executor CONFIG`.

It knows the decision topic, and the simulated deployment only as one knows an orchestrator: by asking it.
"""

import asyncio
import sys

from headrace.streams.cli.connect import Client, open_bus, run_until_stopped
from headrace.streams.cli.run_service import clock_of, logs
from headrace.streams.live import BusScaler, core_client, executor, scale_subject
from headrace.streams.settings import Settings, load


async def follow(settings: Settings, stop: asyncio.Event) -> None:
    """Carry out decisions until stopped."""
    clock, dgd = clock_of(settings.edges.clock), settings.edges.dgd
    async with open_bus(settings, Client("executor", clock=clock.now)) as records:
        client = await core_client(records)
        try:
            scaler = BusScaler(records, client, scale_subject(settings.edges.bus.prefix, dgd), dgd)
            await executor(scaler, records, dgd, "demo").run(stop)
        finally:
            await client.close()


def main() -> None:
    logs()
    settings = load(sys.argv[1])
    run_until_stopped(lambda stop: follow(settings, stop))


if __name__ == "__main__":
    main()
