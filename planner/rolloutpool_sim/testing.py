"""For tests: an emulator inside the test's own process and event loop, on a free loopback port."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from rolloutpool_sim.emulator.server import Server
from rolloutpool_sim.emulator.settings import parse_settings


@asynccontextmanager
async def running_server(
    *flags: str,
    model: str = "emulated",
    time_scale: float = 20.0,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Server]:
    """Serve `model` with `vllm serve` flags and yield the server: `url`, and `emulator` for a look inside.

    `environment` holds further variables of the emulator (EMULATOR_PROFILE, EMULATOR_SEED, ...); the
    process's own environment is not read. Raises SettingsError for bad flags.
    """
    fixed = {"EMULATOR_TIME_SCALE": str(time_scale), "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}
    arguments = [model, "--host", "127.0.0.1", "--port", "0", *flags]
    server = Server(parse_settings(arguments, {**fixed, **(environment or {})}))
    try:
        await server.start()
        yield server
    finally:
        await server.drain()
        await server.close()


@asynccontextmanager
async def running_emulator(
    *flags: str,
    model: str = "emulated",
    time_scale: float = 20.0,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[str]:
    """Like `running_server`, but yield only the base URL, without a slash at its end."""
    async with running_server(*flags, model=model, time_scale=time_scale, environment=environment) as server:
        yield server.url
