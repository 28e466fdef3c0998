"""A local pool with weight synchronisation, as a trainer on the same machine meets it: real processes."""

from __future__ import annotations

import asyncio
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_cli.commands.local import ConsoleListener
from rolloutpool_cli.console import progress
from rolloutpool_cli.render import ready
from rolloutpool_operator.local.events import EventRecord
from rolloutpool_operator.local.folder import TOKEN_FILE
from rolloutpool_operator.local.options import LocalOptions
from rolloutpool_operator.local.ports import free_port
from rolloutpool_operator.local.runtime import LocalPool
from rolloutpool_router.testing import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed-rollouts.yaml"


class Listener:
    """Remembers the object."""

    def __init__(self) -> None:
        self.body: Mapping[str, Any] | None = None

    def status_changed(self, body: Mapping[str, Any]) -> None:
        self.body = body

    def event(self, record: EventRecord) -> None:
        """Not looked at."""

    def is_ready(self) -> bool:
        return self.body is not None and ready(parse_pool(self.body))


def with_weight_sync() -> dict[str, Any]:
    """The example on two aggregated engines, with weight synchronisation."""
    manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    spec = manifest["spec"]
    spec["gpus"]["budget"] = 2
    spec["planning"] = {"mode": "Manual", "replicas": [{"role": "aggregated", "replicas": 2}]}
    spec.pop("slo", None)
    spec["engine"]["env"] = [{"name": "EMULATOR_TIME_SCALE", "value": "10"}]
    spec["engine"]["terminationGraceSeconds"] = 2
    spec["engine"]["rl"] = {"enabled": True, "tokenSecretRef": {"name": "not-used-locally"}}
    return manifest


def test_the_console_says_where_the_token_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A local run has no Secrets: whoever named one must not go on looking for its value."""
    body = with_weight_sync()
    body["metadata"]["generation"] = 1
    body["status"] = {
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}],
        "endpoints": {"router": "http://r", "weights": "http://w"},
    }
    ConsoleListener(progress(), token_file=tmp_path / TOKEN_FILE).status_changed(body)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "Weight synchronisation: http://w",
        f"Its token: {tmp_path / TOKEN_FILE} (engine.rl.tokenSecretRef is for clusters and is not read here)",
    ]


@pytest.mark.timeout(90)
async def test_a_trainer_synchronises_the_engines_of_a_local_pool(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(with_weight_sync()))
    (tmp_path / "logs").mkdir()
    options = LocalOptions(manifest=path, folder=tmp_path, router_port=free_port(), python=sys.executable)
    listener, stop = Listener(), asyncio.Event()
    pool = LocalPool(options, listener=listener)
    running = asyncio.create_task(pool.run(stop))
    try:
        await until(listener.is_ready, timeout=60)
        assert listener.body is not None
        token = tmp_path / TOKEN_FILE
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        url = parse_pool(listener.body).status.endpoints.weights
        model = listener.body["spec"]["model"]["name"]
        # User name and password in the URL are all that some trainers can be told.
        base = url.replace("http://", f"http://trainer:{token.read_text().strip()}@")
        headers = {"X-Rollout-Class": "rlvr"}
        async with httpx.AsyncClient(base_url=base, headers=headers, trust_env=False, timeout=60) as client:
            await synchronise(client, model)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as stranger:
            assert (await stranger.post("/pause")).status_code == 401
    finally:
        stop.set()
        await running


async def synchronise(client: httpx.AsyncClient, model: str) -> None:
    """One step of a trainer: samples, a weight update, and samples of the new policy."""

    async def post(path: str, body: Any = None, **query: str) -> Any:
        answer = await client.post(path, json=body, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    while (await client.get("/health")).status_code != 200:  # noqa: ASYNC110 (as trainers do)
        await asyncio.sleep(0.05)
    world = (await client.get("/get_world_size")).json()["world_size"]
    info = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": world + 1}
    await post("/init_weight_transfer_engine", {"init_info": info})
    sample = {"model": model, "prompt": [1, 2, 3], "max_tokens": 300, "ignore_eos": True}
    running = asyncio.create_task(post("/v1/completions", sample))
    await post("/pause", mode="keep")
    await post("/start_weight_update")
    await post("/update_weights", {"update_info": {"names": ["w"]}})
    await post("/finish_weight_update", {"weight_version": "step-1"})
    assert (await client.get("/weight_info")).json() == {"weight_version": "step-1"}
    waiting = asyncio.create_task(post("/v1/completions", sample | {"max_tokens": 3}))
    await post("/resume")
    assert (await running)["usage"]["completion_tokens"] == 300
    assert (await waiting)["usage"]["completion_tokens"] == 3
    state = (await client.get("/weights")).json()
    assert (world, state["version"], state["paused"]) == (2, "step-1", False)
    assert [engine["stale"] for engine in state["engines"]] == [None, None]
