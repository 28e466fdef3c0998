"""The load against real sockets: a stub that answers as told, and router with emulator in this process."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_api.workloads import Priors, TokenPrior, WorkloadSpec
from rolloutpool_cli.load.client import AttemptFailed, TrainerClient
from rolloutpool_cli.load.runner import LoadRun
from rolloutpool_cli.load.scenario import Scenario
from rolloutpool_router.app import build_router
from rolloutpool_router.server import serving
from rolloutpool_router.testing import pool_object, running_router
from rolloutpool_router.watch_file import watch_file
from rolloutpool_sim.testing import running_emulator
from rolloutpool_testkit.manifests import pool_manifest

SHORT = TokenPrior(p50=4, p95=8)
CLASSES = (
    WorkloadSpec(name="rlhf", share=0.5, priors=Priors(prompt_tokens=SHORT, output_tokens=SHORT)),
    WorkloadSpec(
        name="agentic",
        share=0.5,
        priors=Priors(
            prompt_tokens=SHORT, output_tokens=SHORT, turns=3, turn_tokens=4, tool_gap_seconds=0.01
        ),
    ),
)
ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "length"}],
    "usage": {"completion_tokens": 7},
}


class Stub:
    """A server that keeps what it was sent, and answers the first requests as told and the others well."""

    def __init__(self, answers: Sequence[web.Response], *, silent: bool = False) -> None:
        self.answers = list(answers)
        self.silent = silent
        self.requests: list[tuple[str, str, list[dict[str, str]]]] = []
        self.finished: list[str] = []

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(
            (request.headers.get("X-Session-ID", ""), request.headers["X-Rollout-Class"], body["messages"])
        )
        if self.silent:
            await asyncio.Event().wait()
        if self.answers:
            return self.answers.pop(0)
        return web.json_response(ANSWER, headers={"X-RolloutPool-Queue-Seconds": "0.250"})

    async def finish(self, request: web.Request) -> web.Response:
        self.finished.append(request.query["session_id"])
        return web.json_response({})


@asynccontextmanager
async def serve(stub: Stub) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", stub.chat)
    app.router.add_post("/finish_session", stub.finish)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site.name
    finally:
        await runner.cleanup()


def load_run(client: TrainerClient, *, sessions: bool = True) -> LoadRun:
    return LoadRun(
        client=client,
        scenario=Scenario(CLASSES, max_model_len=None, run="run", rng=random.Random(0)),
        shares={workload.name: workload.share for workload in CLASSES},
        seed=0,
        sessions=sessions,
        clock=time.monotonic,
    )


async def run_for(
    url: str, *, window: int = 2, seconds: float = 0.3, drain: float = 5.0, sessions: bool = True
) -> LoadRun:
    async with TrainerClient(url, model="m") as client:
        run = load_run(client, sessions=sessions)
        await run.run(window=window, duration_seconds=seconds, drain_seconds=drain, stop=asyncio.Event())
        return run


async def test_sessions_grow_their_history_and_are_finished() -> None:
    stub = Stub([])
    async with serve(stub) as url:
        run = await run_for(url)
    report = run.report()
    assert report.lost == 0
    assert [item.wait_p50_seconds for item in report.classes] == [0.25, 0.25]
    by_session: dict[str, list[list[dict[str, str]]]] = {}
    for session, _, messages in stub.requests:
        by_session.setdefault(session, []).append(messages)
    assert set(stub.finished) == set(by_session)
    assert Counter(stub.finished).most_common(1)[0][1] == 1
    for turns in by_session.values():
        for earlier, later in pairwise(turns):
            assert later[: len(earlier)] == earlier
            assert [message["role"] for message in later[len(earlier) :]] == ["assistant", "user"]


async def test_without_sessions_no_request_names_one() -> None:
    stub = Stub([])
    async with serve(stub) as url:
        run = await run_for(url, sessions=False)
    assert run.report().lost == 0
    assert {session for session, _, _ in stub.requests} == {""}
    assert stub.finished == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(web.Response(status=503, text="full"), id="unavailable"),
        pytest.param(web.Response(text="{"), id="half-an-answer"),
        pytest.param(
            web.json_response({"choices": [{"message": {}, "finish_reason": "abort"}]}), id="aborted"
        ),
    ],
)
async def test_a_failed_turn_is_sent_again(answer: web.Response) -> None:
    stub = Stub([answer])
    async with serve(stub) as url:
        run = await run_for(url, window=1, seconds=0.1)
    assert stub.requests[0] == stub.requests[1]
    assert sum(tally.errors for tally in run.tallies.values()) == 1
    assert sum(tally.retries for tally in run.tallies.values()) == 1
    assert run.report().lost == 0
    assert run.last_error


async def test_a_bad_request_loses_its_session_at_once() -> None:
    stub = Stub([web.Response(status=400, text="too long")])
    async with serve(stub) as url:
        run = await run_for(url, window=1, seconds=0.1)
    assert run.report().lost == 1
    assert run.last_error == "HTTP 400: too long"
    assert stub.finished[0] == stub.requests[0][0], "a lost session is finished too"


async def test_what_does_not_end_in_time_is_cut_and_finished() -> None:
    stub = Stub([], silent=True)
    async with serve(stub) as url:
        run = await run_for(url, window=3, seconds=0.1, drain=0.1)
    assert sum(tally.unfinished for tally in run.tallies.values()) == 3
    assert run.report().lost == 0
    assert len(stub.finished) == 3


async def test_a_refused_connection_is_an_attempt_that_failed() -> None:
    async with TrainerClient("http://127.0.0.1:9", model="m") as client:
        with pytest.raises(AttemptFailed) as caught:
            await client.chat([], output_tokens=1, class_name="rlhf", session_id=None)
    assert caught.value.status is None


async def test_classes_of_a_router_and_of_what_is_none(tmp_path: Path) -> None:
    async with serve(Stub([])) as url, TrainerClient(url, model="m") as client:
        assert await client.classes() == ()
    async with (
        running_router(tmp_path / "pool.json", pool_object({})) as router,
        TrainerClient(router.url, model="m") as client,
    ):
        assert await client.classes() == ("rlvr", "rlhf", "agentic")


async def test_the_manifest_of_another_pool_is_refused(tmp_path: Path) -> None:
    manifest = tmp_path / "pool.yaml"
    manifest.write_text(yaml.safe_dump(pool_manifest(workloads=[{"name": "sft", "share": 1}])))
    async with running_router(tmp_path / "pool.json", pool_object({})) as router:
        command = (
            sys.executable,
            "-m",
            "rolloutpool_cli.main",
            "load",
            "--url",
            router.url,
            "-f",
            str(manifest),
        )
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"knows no sft" in errors


async def test_router_and_emulator_take_the_load(tmp_path: Path) -> None:
    file = tmp_path / "pool.json"
    manifest = pool_manifest("pool", model={"name": "m"}, workloads=[w.to_wire() for w in CLASSES])
    manifest["metadata"] |= {"uid": "u", "generation": 1}
    async with running_emulator("--num-gpu-blocks-override", "256", model="m", time_scale=50.0) as engine:
        endpoint = {"name": "e0", "role": "aggregated", "url": engine, "ready": True}
        body: dict[str, Any] = {**manifest, "status": {"endpoints": {"admin": [endpoint]}}}
        assert parse_pool(body)
        file.write_text(json.dumps(body))
        router = build_router("r0")
        async with serving(
            router, partial(watch_file, file, router.feed), host="127.0.0.1", port=0, grace_seconds=1
        ) as port:
            run = await run_for(f"http://127.0.0.1:{port}", window=6, seconds=1.0)
    report = run.report()
    assert report.lost == 0
    assert all(item.finished > 0 and item.unfinished == 0 for item in report.classes)
    assert all(item.wait_p95_seconds is not None for item in report.classes)
    assert report.output_tokens_per_second > 0
