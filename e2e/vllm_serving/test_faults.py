"""Clients that go away, and engines that die."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from vllm_serving.asking import ENGINE_HEADER, cached_tokens, text, user
from vllm_serving.engines import Engine
from vllm_serving.model import NAME
from vllm_serving.routing import AGENT, SAMPLES

LONG: dict[str, Any] = {
    "model": NAME,
    "messages": [user(text(1, 20))],
    "max_tokens": 6000,
    "ignore_eos": True,
}
SHORT = {**LONG, "max_tokens": 4}
CHAT = "/v1/chat/completions"


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not so within {seconds} s")
        time.sleep(0.05)


def running(engines: list[Engine]) -> int:
    """Requests in all engines."""
    return sum(each.counters().running for each in engines if each.alive)


@contextlib.contextmanager
def streaming(http: httpx.Client, session: str) -> Iterator[tuple[Iterator[str], str]]:
    """A long stream that has begun: its further lines, and its engine's name."""
    headers = {**AGENT, "X-Session-ID": session}
    with http.stream("POST", CHAT, json={**LONG, "stream": True}, headers=headers) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines, answer.headers[ENGINE_HEADER]


def test_leaving_a_stream_ends_it_in_the_engine(http: httpx.Client, engines: list[Engine]) -> None:
    """The engine stops generating for a client that has closed its connection."""
    before = sum(each.counters().generated for each in engines)
    with streaming(http, "agent-leaves"):
        assert running(engines) == 1
    wait_until(lambda: running(engines) == 0, seconds=5)
    assert sum(each.counters().generated for each in engines) - before < 6000


def test_leaving_before_the_answer_ends_it_in_the_engine(router: str, engines: list[Engine]) -> None:
    """... and for one that waited for a whole answer."""
    with httpx.Client(base_url=router) as http:
        patience = httpx.Timeout(60, read=1.0)
        with pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=LONG, headers=SAMPLES, timeout=patience)
    wait_until(lambda: running(engines) == 0, seconds=5)


async def test_many_that_leave_at_once_leave_nothing_behind(router: str, engines: list[Engine]) -> None:
    """After 100 clients went away, in their streams or still waiting, engines idle and no session is in."""

    async def begin(http: httpx.AsyncClient, session: str) -> None:
        headers = {**AGENT, "X-Session-ID": session}
        async with http.stream("POST", CHAT, json={**LONG, "stream": True}, headers=headers) as answer:
            async for _ in answer.aiter_lines():
                pass

    sessions = [f"agent-crowd-{number}" for number in range(100)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=router, timeout=60, limits=limits) as http:
        clients = [asyncio.create_task(begin(http, session)) for session in sessions]
        await asyncio.to_thread(wait_until, lambda: running(engines) > 10)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: running(engines) == 0)
    await asyncio.to_thread(nothing_left, router, sessions)


def nothing_left(router: str, sessions: list[str]) -> None:
    """Once these sessions are finished, no session is in or waits, and a new one enters."""
    with httpx.Client(base_url=router, timeout=60) as http:
        for session in sessions:
            http.post("/finish_session", params={"session_id": session}).raise_for_status()
        assert http.post(CHAT, json=SHORT, headers=SAMPLES).status_code == 200
        classes = http.get("/admission/snapshot").json()["classes"]
    assert [(each["active"], each["waiting"]) for each in classes] == [(0, 0)] * len(classes)


def test_a_killed_engine_breaks_the_stream_and_the_next_turn_goes_elsewhere(
    http: httpx.Client, engines: list[Engine]
) -> None:
    """A client cannot take half an answer for a whole one; its session lives on, computed anew."""
    by_name = {each.name: each for each in engines}
    with streaming(http, "agent-orphan") as (lines, first):
        by_name[first].kill()
        with pytest.raises(httpx.RemoteProtocolError):  # it ends without its end
            list(lines)
    headers = {**AGENT, "X-Session-ID": "agent-orphan"}
    for _ in range(2):
        answer = http.post(CHAT, json=SHORT, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers[ENGINE_HEADER] not in (first, "")
    assert cached_tokens(answer.json()["usage"]) > 0


def test_an_engine_that_came_back_serves_again(
    router: str, http: httpx.Client, engines: list[Engine]
) -> None:
    """Nobody has to tell the router; `engines` has started again the one that was killed."""
    served: set[str] = set()

    def both() -> bool:
        answer = http.post(CHAT, json=SHORT, headers=SAMPLES)
        assert answer.status_code == 200
        served.add(answer.headers[ENGINE_HEADER])
        return served == {each.name for each in engines}

    wait_until(both, seconds=30)


def test_a_killed_engine_while_a_client_waits_for_a_whole_answer(
    client: openai.OpenAI, engines: list[Engine]
) -> None:
    """It is told that the request was not repeated; with more tries allowed the client sends it again."""
    failed: list[openai.APIStatusError] = []

    def ask() -> None:
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(
                model=NAME,
                messages=[{"role": "user", "content": "go on for long"}],
                max_tokens=6000,
                extra_body={"ignore_eos": True},
                extra_headers=SAMPLES,
            )
        failed.append(refused.value)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: running(engines) == 1)
    next(each for each in engines if each.counters().running).kill()
    thread.join()
    assert [each.status_code for each in failed] == [502]
    assert "not repeated" in str(failed[0])
