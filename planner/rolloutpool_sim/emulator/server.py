"""Runs an emulator as a process: command line, listening socket, signals and draining."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

import zmq
from aiohttp import web

from rolloutpool_sim.emulator.app import Emulator
from rolloutpool_sim.emulator.settings import Settings, SettingsError, parse_settings

_ABORT_SECONDS = 2.0  # for aborted requests to be answered, once the shutdown timeout is over

log = logging.getLogger("rolloutpool_sim.emulator")


class Server:
    """One emulator listening on its address. Start it, then `drain` and `close`."""

    def __init__(self, settings: Settings) -> None:
        self.emulator = Emulator(settings, created=int(time.time()))
        self._settings = settings
        self._runner = web.AppRunner(
            self.emulator.application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_ABORT_SECONDS,
        )
        self._stepping: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Port that the server listens on."""
        return self.emulator.generator.port

    @property
    def url(self) -> str:
        """Base URL on the host it was told to listen on, without a slash at the end."""
        return f"http://{self._settings.host}:{self.port}"

    async def start(self) -> None:
        """Listen and let the engine run. Raises OSError if the address cannot be listened on."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._settings.host, self._settings.port).start()
        self.emulator.generator.port = self._runner.addresses[0][1]
        if self.emulator.publisher is not None:
            self.emulator.publisher.start()
        self._stepping = asyncio.create_task(self.emulator.driver.run())

    async def failed(self) -> None:
        """Wait until the engine stops by itself, which only an error makes it do; raises that error."""
        assert self._stepping is not None
        await asyncio.shield(self._stepping)

    async def drain(self) -> None:
        """Take no more requests, let those in flight go on for the shutdown timeout, then abort them."""
        self.emulator.generator.draining = True
        for site in list(self._runner.sites):
            await site.stop()
        try:
            await asyncio.wait_for(self.emulator.driver.empty(), self._settings.shutdown_timeout)
        except TimeoutError:
            self.emulator.driver.abort_all()

    async def close(self) -> None:
        """Answer what is still open, then stop the engine and free the address."""
        await self._runner.cleanup()
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.gather(self._stepping, return_exceptions=True)


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises OSError if the address cannot be listened on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(settings)
    try:
        await server.start()
        _announce(settings, server.port)
        stopping = asyncio.create_task(stop.wait())
        failing = asyncio.create_task(server.failed())
        await asyncio.wait({stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            failing.result()
        failing.cancel()
        await server.drain()
    finally:
        await server.close()


def _announce(settings: Settings, port: int) -> None:
    engine = settings.engine
    log.info(
        "serving %s as %s on %s:%d: profile %s TP%d PP%d, %d blocks of %d tokens, max_model_len %d,"
        " max_num_seqs %d, max_num_batched_tokens %d, time scale %g, seed %d, KV transfer %s",
        settings.model,
        ",".join(settings.served_names),
        settings.host,
        port,
        settings.profile.name,
        settings.tensor_parallel,
        settings.pipeline_parallel,
        engine.num_blocks,
        engine.block_size,
        engine.max_model_len,
        engine.max_num_seqs,
        engine.max_num_batched_tokens,
        settings.time_scale,
        settings.seed,
        "on" if settings.kv_transfer else "off",
    )
    if settings.ignored_flags:
        log.warning("flags that the emulator has no use for: %s", " ".join(settings.ignored_flags))


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Run an emulator; return the exit code: 0 after a drain, 1 if it cannot listen, 2 for bad settings."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        settings = parse_settings(words, os.environ if environment is None else environment)
    except SettingsError as error:
        sys.stderr.write(f"rolloutpool_sim.emulator: {error}\n")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(serve(settings))
    except OSError as error:
        sys.stderr.write(
            f"rolloutpool_sim.emulator: cannot listen on {settings.host}:{settings.port}: {error}\n"
        )
        return 1
    except zmq.ZMQError as error:
        sys.stderr.write(f"rolloutpool_sim.emulator: cannot publish KV events: {error}\n")
        return 1
    return 0
