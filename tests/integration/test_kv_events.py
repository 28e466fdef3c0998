"""KV events over real ZeroMQ sockets: losses, restarts, garbage, engines that come and go; and placement."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cluster.ports import free_ports
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.kv_events import write_seq
from rolloutpool_router.core.prefix import PrefixIndex
from rolloutpool_router.core.prompts import PrefixKey, read_prompt
from rolloutpool_router.core.view import PoolView, build_view
from rolloutpool_router.kv_events import KvCollector, KvEvents
from rolloutpool_router.kv_events.pool import SILENCE_SECONDS
from rolloutpool_router.kv_events.testing import HOST, FakePublisher
from rolloutpool_router.testing import pool_object, running_router, until
from rolloutpool_testkit.loops import on_both_loops

BLOCK = 16
MODEL = "m"


def keys(tokens: Sequence[int]) -> tuple[PrefixKey, ...]:
    prompt = {"model": json.dumps(MODEL).encode(), "prompt": json.dumps(list(tokens)).encode()}
    return read_prompt(prompt, block_size=BLOCK).prefix_keys()


def tokens(prompt: int) -> list[int]:
    """One key's worth of tokens."""
    return [prompt] * 64


def stored(prompt: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [4 * prompt + place for place in range(4)],
        "parent_block_hash": None,
        "token_ids": tokens(prompt),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def removed(prompt: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [4 * prompt + 3], "medium": "GPU"}


def pool_of(
    engines: Mapping[str, str], ports: Sequence[Sequence[int]], *, enabled: bool = True
) -> dict[str, Any]:
    """A pool of engines with their ports for events and for repeating them."""
    pool = pool_object(engines, caps={"rlvr": 8, "rlhf": 8, "agentic": 8})
    pool["spec"]["engine"] = {"kvEvents": {"enabled": enabled}, "blockSize": BLOCK}
    for endpoint, (port, replay_port) in zip(pool["status"]["endpoints"]["admin"], ports, strict=True):
        endpoint["kvEventsPort"], endpoint["kvReplayPort"] = port, replay_port
    return pool


class Router:
    """What a router keeps of the engines' caches; `view` may be changed."""

    def __init__(
        self, *ports: Sequence[int], enabled: bool = True, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        self.index = PrefixIndex()
        self.view: PoolView | None = None
        self.show(*ports, enabled=enabled)
        self.kv = KvEvents(self.index, lambda: self.view, look_seconds=0.01, silence_seconds=silence_seconds)

    def show(self, *ports: Sequence[int], enabled: bool = True) -> None:
        engines = {f"e{number}": f"http://{HOST}:1" for number in range(len(ports))}
        pool = parse_pool(pool_of(engines, ports, enabled=enabled))
        self.view = build_view(pool, pool.status.admission, {})

    def says(self, engine: str = "e0") -> set[int]:
        return {prompt for prompt in range(20) if engine in self.index.overlaps(keys(tokens(prompt)))}

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Router]:
        running = asyncio.create_task(self.kv.run())
        try:
            yield self
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert self.kv.engines == 0


def exposed(kv_events: KvEvents) -> set[str]:
    """Lines of /metrics."""
    registry = CollectorRegistry()
    registry.register(KvCollector(kv_events))
    return set(generate_latest(registry).decode().splitlines())


def ports_of(publisher: FakePublisher) -> tuple[int, int]:
    return int(publisher.address.rpartition(":")[2]), int(publisher.replay_address.rpartition(":")[2])


@on_both_loops
async def test_the_index_follows_an_engine() -> None:
    async with FakePublisher.running() as engine, Router(ports_of(engine)).following() as router:
        await engine.subscribed()
        await engine.publish(stored(1), list(stored(2).values()))
        await until(lambda: router.says() == {1, 2})
        await engine.publish(removed(1), ["BlockRemoved", [11], "GPU"])
        await until(lambda: router.says() == set())
        await engine.publish(stored(3))
        await engine.publish({"type": "AllBlocksCleared"}, stored(4))
        await until(lambda: router.says() == {4})

        assert exposed(router.kv) >= {
            "rolloutpool_router_kv_events_events_total 7.0",
            'rolloutpool_router_kv_events_blocks_total{change="stored"} 16.0',
            "rolloutpool_router_kv_events_engines 1.0",
            "rolloutpool_router_kv_events_known_blocks 4.0",
        }
        assert router.kv.counts.events == 7
        assert (router.kv.counts.gaps, router.kv.counts.resets, router.kv.counts.malformed) == (0, 0, 0)
        assert router.kv.known_blocks == 4


@pytest.mark.parametrize("names_topic", [True, False], ids=["0.32", "older"])
async def test_what_was_before_and_what_got_lost_is_repeated(names_topic: bool) -> None:
    async with FakePublisher.running(names_topic=names_topic) as engine:
        await engine.publish(stored(1))
        await engine.publish(stored(2))
        async with Router(ports_of(engine)).following() as router:
            await engine.subscribed()
            await until(lambda: router.says() == {1, 2})
            await engine.publish(stored(3), lost=True)
            await engine.publish(removed(1), lost=True)
            await engine.publish(stored(5))
            await until(lambda: router.says() == {2, 3, 5})
            await engine.publish(stored(6))
            await until(lambda: router.says() == {2, 3, 5, 6})

            assert engine.asked == [0, 1]
            assert (router.kv.counts.gaps, router.kv.counts.replays, router.kv.counts.resets) == (1, 2, 0)
            assert router.kv.counts.batches == 6


async def test_what_cannot_be_repeated_is_given_up_with_all_that_was_known() -> None:
    async with FakePublisher.running() as engine, Router(ports_of(engine)).following() as router:
        await engine.subscribed()
        await engine.publish(stored(1))
        await until(lambda: router.says() == {1} and engine.asked == [0])
        await engine.publish(stored(2), lost=True, kept=False)
        await engine.publish(stored(3))
        await until(lambda: router.says() == {3})

        assert (router.kv.counts.gaps, router.kv.counts.resets) == (1, 1)


@on_both_loops
async def test_an_engine_that_comes_back_begins_anew() -> None:
    port, replay_port = free_ports(2)
    async with Router((port, replay_port)).following() as router:
        async with FakePublisher.running(port=port, replay_port=replay_port) as engine:
            await engine.subscribed()
            for prompt in range(4):
                await engine.publish(stored(prompt))
            await until(lambda: router.says() == {0, 1, 2, 3})
        async with FakePublisher.running(port=port, replay_port=replay_port) as engine:
            await engine.subscribed()
            await engine.publish(stored(9))
            await until(lambda: router.says() == {9})

        assert router.kv.counts.resets == 1


async def test_garbage_is_counted_and_what_follows_is_read() -> None:
    async with FakePublisher.running() as engine, Router(ports_of(engine)).following() as router:
        await engine.subscribed()
        for frames in ([b"alone"], [b"", b"short", b""], [b"", b"a" * 9, b""]):
            await engine.send_frames(frames)
        await engine.send(b"\xc1garbage")
        await engine.publish({"type": "BlockStored", "block_hashes": "x"}, 5, stored(1), {"type": "New"})
        await until(lambda: router.says() == {1})

        assert router.kv.counts.malformed == 6
        assert router.kv.counts.resets == 0


async def test_a_message_out_of_all_bounds_is_not_taken() -> None:
    async with FakePublisher.running() as engine:
        router = Router(ports_of(engine), silence_seconds=0.3)
        async with router.following():
            await engine.subscribed()
            await engine.publish(stored(1))
            await engine.send(b"x" * 5 * 2**20, kept=False)
            await engine.publish(stored(2))
            # ZeroMQ gives the connection up; it is made anew, and what was missed is asked for.
            await until(lambda: router.says() == {2})
            await engine.subscribed()
            await engine.publish(stored(3))
            await until(lambda: router.says() == {2, 3})


async def test_a_port_of_something_else_is_tried_again_until_the_engine_has_it() -> None:
    port, replay_port = free_ports(2)
    met = asyncio.Event()

    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        met.set()

    babbler = await asyncio.start_server(babble, HOST, port)
    async with Router((port, replay_port), silence_seconds=0.3).following() as router:
        await met.wait()
        babbler.close()
        await babbler.wait_closed()
        async with FakePublisher.running(port=port, replay_port=replay_port) as engine:
            await engine.subscribed()
            await engine.publish(stored(1))
            await until(lambda: router.says() == {1})


async def test_engines_come_and_go_with_the_view() -> None:
    async with FakePublisher.running() as one, FakePublisher.running() as other:
        router = Router(ports_of(one))
        async with router.following():
            await one.subscribed()
            await one.publish(stored(1))
            await until(lambda: router.says() == {1})
            router.show(ports_of(one), ports_of(other))
            await other.subscribed()
            await other.publish(stored(2))
            await until(lambda: router.says("e1") == {2} and router.says() == {1})
            router.show(ports_of(other))
            await until(lambda: router.says() == {2} and not router.says("e1"))
            assert router.kv.engines == 1
            router.show(ports_of(other), enabled=False)
            await until(lambda: router.kv.engines == 0 and router.says() == set())


async def test_an_engine_that_is_not_there_keeps_no_other_from_being_followed() -> None:
    dead = [free_ports(2) for _ in range(5)]
    async with FakePublisher.running() as engine, Router(*dead, ports_of(engine)).following() as router:
        await engine.subscribed()
        await engine.publish(stored(1))
        await until(lambda: router.says("e5") == {1})


async def test_many_events_leave_room_for_others() -> None:
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with FakePublisher.running() as engine, Router(ports_of(engine)).following() as router:
        await engine.subscribed()
        await engine.publish(stored(1))
        await until(lambda: router.says() == {1})
        working = asyncio.create_task(other_work())
        before = turns
        await engine.publish(*[removed(19)] * 20_000, stored(2))
        await until(lambda: router.says() == {1, 2})
        working.cancel()

        assert turns - before > 20_000 / 64


@asynccontextmanager
async def emulator(ports: Sequence[int]) -> AsyncIterator[str]:
    """An engine of 100 blocks in a process of its own; its URL."""
    http, events, replay = ports
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://{HOST}:{events}",
        "replay_endpoint": f"tcp://{HOST}:{replay}",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rolloutpool_sim.emulator", MODEL, "--host", HOST, "--port", str(http)),
        *("--num-gpu-blocks-override", "101", "--max-model-len", "1500", "--block-size", str(BLOCK)),
        *("--kv-events-config", json.dumps(config)),
        env={"EMULATOR_TIME_SCALE": "50", "PATH": ""},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield f"http://{HOST}:{http}"
    finally:
        process.terminate()
        await process.wait()


async def serves(client: httpx.AsyncClient, url: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                if (await client.get(f"{url}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.02)


async def complete(client: httpx.AsyncClient, url: str, prompt: Sequence[int]) -> str:
    """The engine that answered a prompt of token ids; empty if it was asked directly."""
    body = {"model": MODEL, "prompt": list(prompt), "max_tokens": 2}
    answer = await client.post(f"{url}/v1/completions", json=body, headers={"X-Rollout-Class": "rlvr"})
    assert answer.status_code == 200, answer.text
    return str(answer.headers.get("X-RolloutPool-Engine", ""))


async def test_a_prompt_of_token_ids_goes_where_its_beginning_is(tmp_path: Path) -> None:
    """The engines are filled behind the router's back: it knows of their caches by their events alone."""
    ports = [free_ports(3) for _ in range(2)]
    async with (
        emulator(ports[0]) as one,
        emulator(ports[1]) as other,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        await serves(client, one)
        await serves(client, other)
        prompts = [[1000 * n + place for place in range(320)] for n in range(1, 5)]
        for number, prompt in enumerate(prompts):
            await complete(client, (one, other)[number % 2], prompt)
        pool = pool_of({"e0": one, "e1": other}, [item[1:] for item in ports])
        async with running_router(tmp_path / "pool.json", pool) as router:
            index = router.router.gate.controller.fleet.prefixes
            await until(lambda: all(index.overlaps(keys(prompt)) for prompt in prompts))
            for number, prompt in enumerate(prompts):
                assert index.overlaps(keys(prompt)) == {f"e{number % 2}": 5}
                assert await complete(client, router.url, [*prompt, 7, 7]) == f"e{number % 2}"

            # What evicts the first prompt from the first engine while the other comes to hold it.
            await complete(client, other, prompts[0])
            await complete(client, one, [5] * 1400)
            await until(lambda: index.overlaps(keys(prompts[0])) == {"e1": 5})
            for tail in range(4):
                assert await complete(client, router.url, [*prompts[0], 8, tail]) == "e1"


def test_the_fake_repeats_as_vllm_does() -> None:
    """Sequence numbers are 8 bytes, big-endian; a batch is an array."""
    assert write_seq(258) == b"\0" * 6 + b"\1\2"
    assert (
        msgspec.msgpack.decode(msgspec.msgpack.encode([0.0, [stored(1)], 0]))[1][0]["type"] == "BlockStored"
    )
