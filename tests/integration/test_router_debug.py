"""The debug page over HTTP: self-contained, closed to foreign scripts, and fed with a state that is true."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rolloutpool_router.testing import FakeEngine, RunningRouter, pool_object, running_router

CHAT = "/v1/chat/completions"
PAGE = "/debug/admission"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "the secret prompt"}]}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    async with FakeEngine().running() as engine:
        pool = pool_object({"e0": engine.url}, caps={"rlvr": 1, "rlhf": 1, "agentic": 1})
        async with running_router(tmp_path / "pool.json", pool) as running:
            yield running


async def test_the_page_may_run_its_own_script_and_nothing_else(
    client: aiohttp.ClientSession, router: RunningRouter
) -> None:
    async with client.get(router.url + PAGE) as answer:
        page = await answer.text()
        policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
        assert answer.content_type == "text/html"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert policy.pop("default-src") == "'none'"
    for kind in ("script", "style"):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(f"{kind}-src") == f"'sha256-{digest}'"
    assert policy == {
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


async def test_the_page_needs_nothing_from_elsewhere(
    client: aiohttp.ClientSession, router: RunningRouter
) -> None:
    async with client.get(router.url + PAGE) as answer:
        page = await answer.text()
    assert re.findall(r"https?://|(?:src|action|href)=\"(?!#|data:,)", page) == []
    assert re.findall(r"\son\w+=|innerHTML|insertAdjacentHTML|document\.write|eval\(|style=\"", page) == []


async def test_the_state_follows_what_happens_and_holds_no_secret(
    client: aiohttp.ClientSession, router: RunningRouter
) -> None:
    headers = {"X-Rollout-Class": "agentic", "X-Session-ID": HOSTILE, "Authorization": "Bearer secret-key"}
    async with client.post(router.url + CHAT, json=BODY, headers=headers) as answer:
        assert answer.status == 200
    async with client.get(router.url + PAGE + "/state") as answer:
        assert (answer.content_type, answer.headers["Cache-Control"]) == ("application/json", "no-store")
        assert "secret" not in await answer.text()
        state = await answer.json()
    (told,) = state["entered"]
    assert told["session"] == HOSTILE[:23] + "…"
    assert (told["class"], told["engine"], told["reason"]) == ("agentic", "e0", "room")
    assert [row["active"] for row in state["classes"]] == [0, 0, 1]
    assert state["engines"][0]["sessions"] == [0, 0, 1]
    assert state["pool"]["name"] == "pool"
