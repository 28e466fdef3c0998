"""Weight updates through the router: one collective of the trainer and two real engines, over Gloo.

The last file of tests: the weights that it leaves are those that it found, but an engine is started anew.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from vllm_serving.asking import ENGINE_HEADER, tokens
from vllm_serving.engines import Engine
from vllm_serving.model import NAME
from vllm_serving.routing import SAMPLES, Router, running
from vllm_serving.training import ask, update

TOKEN = "not-so-secret"
BASE = "default"
"""What an engine calls the weights that it was started with."""
HELD_SECONDS = 1.5
PROMPTS = 32


@pytest.fixture(scope="module")
def synced(started: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A router with its listener of weight synchronisation."""
    folder = tmp_path_factory.mktemp("weights")
    token = folder / "token"
    token.write_text(TOKEN)
    rl = {"enabled": True, "tokenSecretRef": {"name": "weights", "key": "token"}}
    options = ("--weights-token-file", str(token), "--weights-port", "0")
    with running(started, folder, options=options, engine={"rl": rl}) as router:
        yield router


@pytest.fixture
def control(synced: Router, engines: list[Engine]) -> Iterator[httpx.Client]:
    """A trainer's client."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=synced.weights_url, headers=headers, timeout=60) as client:
        yield client


def body(seed: int) -> dict[str, Any]:
    """A generation whose answer depends on the weights alone."""
    return {
        "model": NAME,
        "token_ids": tokens(seed, 60),
        "sampling_params": {"max_tokens": 8, "temperature": 0},
    }


def generate(synced: Router, seed: int) -> tuple[str, dict[str, Any]]:
    """An engine, and what it makes of the prompt of a seed."""
    answer = httpx.post(f"{synced.url}/inference/v1/generate", json=body(seed), headers=SAMPLES, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers[ENGINE_HEADER], answer.json()["choices"][0]


def generate_many(synced: Router) -> list[tuple[str, dict[str, Any]]]:
    """As many prompts at once as both engines share."""
    with ThreadPoolExecutor(PROMPTS) as pool:
        return list(pool.map(lambda seed: generate(synced, seed), range(200, 200 + PROMPTS)))


def made_by(engine: Engine) -> list[int]:
    """What an engine makes of one prompt."""
    answer = httpx.post(f"{engine.url}/inference/v1/generate", json=body(80), timeout=60)
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def versions(answers: list[tuple[str, dict[str, Any]]]) -> set[str]:
    """Versions of the weights that made the answers."""
    return {each["version"] for _, choice in answers for each in choice["weight_versions"]}


def test_nobody_else_may(synced: Router, engines: list[Engine]) -> None:
    """Without the token not even a question is answered; the data port knows no control calls."""
    assert httpx.get(f"{synced.weights_url}/get_world_size").status_code == 401
    assert httpx.post(f"{synced.url}/pause").status_code == 404
    assert httpx.get(f"{engines[0].url}/is_paused").json() == {"is_paused": False}


def test_the_pool_answers_as_one_engine(control: httpx.Client) -> None:
    """Workers add up; what all engines say alike is the answer."""
    assert control.get("/get_world_size").json() == {"world_size": 2}
    assert control.get("/weight_info").json() == {"weight_version": BASE}
    assert control.get("/is_paused").json() == {"is_paused": False}


def test_an_update_reaches_every_engine(
    synced: Router, control: httpx.Client, engines: list[Engine], folder: Path
) -> None:
    """Requests wait for it in the router, and are answered by the new weights alone."""
    old = made_by(engines[0])
    ask(control, "/pause?mode=keep")
    assert control.get("/is_paused").json() == {"is_paused": True}
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(generate, synced, 80)
        time.sleep(HELD_SECONDS)  # there is no sign of a request that is not sent
        assert not held.done()
        assert [(each.counters().running, each.counters().waiting) for each in engines] == [(0, 0)] * 2
        update(control, folder / "store", seed=1, version="step-1")
        assert not held.done()
        ask(control, "/resume")
        assert held.result()[1]["token_ids"] != old
    assert control.get("/weight_info").json() == {"weight_version": "step-1"}
    assert made_by(engines[0]) == made_by(engines[1]) == held.result()[1]["token_ids"]
    answers = generate_many(synced)
    assert {engine for engine, _ in answers} == {each.name for each in engines}
    assert versions([*answers, held.result()]) == {"step-1"}


def test_an_engine_that_was_restarted_gets_nothing_until_it_is_updated(
    synced: Router, control: httpx.Client, engines: list[Engine], folder: Path
) -> None:
    """It has its first weights again, and no sample may come from those; the next update takes it in."""
    engines[1].restart()
    answers = generate_many(synced)
    assert {engine for engine, _ in answers} == {engines[0].name}
    assert versions(answers) == {"step-1"}

    ask(control, "/pause?mode=keep")
    update(control, folder / "store", seed=0, version=BASE)
    ask(control, "/resume")
    answers = generate_many(synced)
    assert {engine for engine, _ in answers} == {each.name for each in engines}
    assert versions(answers) == {BASE}
    assert made_by(engines[0]) == made_by(engines[1])
