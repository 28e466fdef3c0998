"""A trainer that updates the engines' weights through one URL, as TRL does: what it asks of the engines."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from vllm_install import environment

TIMEOUT_SECONDS = 120.0


@contextmanager
def sending(store: Path, *, engines: int, seed: int) -> Iterator[dict[str, Any]]:
    """Have a trainer send weights within the block; gives the `update_info` that engines must know."""
    python = environment.installed()
    with subprocess.Popen(
        [str(python / "bin" / "python"), "-m", "vllm_serving.trainer", str(store), str(engines), str(seed)],
        env={**environment.variables(python), "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
            process.wait(TIMEOUT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0


def ask(control: httpx.Client, path: str, body: dict[str, Any] | None = None) -> Any:
    """One control call. Raises HTTPStatusError unless all engines did it."""
    answer = control.post(path, json=body, timeout=TIMEOUT_SECONDS)
    answer.raise_for_status()
    return answer.json()


def update(control: httpx.Client, store: Path, *, seed: int, version: str) -> None:
    """Give all engines, which are paused, the weights of a seed; they find each other at a new `store`."""
    engines = control.get("/get_world_size").raise_for_status().json()["world_size"]
    with sending(store, engines=engines, seed=seed) as info:
        joining = {"store": str(store), "rank_offset": 1, "world_size": engines + 1}
        ask(control, "/init_weight_transfer_engine", {"init_info": joining})
        ask(control, "/start_weight_update", {})
        ask(control, "/update_weights", {"update_info": info})
        ask(control, "/finish_weight_update", {"weight_version": version})
    ask(control, "/reset_prefix_cache")
