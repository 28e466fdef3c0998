"""The trainer's side of HTTP: one chat completion, the end of a session.

aiohttp, not httpx: at 100 sessions at once it takes about 0.2 ms of CPU a request, httpx about 17 ms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import ValidationError

from rolloutpool_api.snapshot import AdmissionSnapshot

CONNECT_SECONDS = 5.0
"""Longest time to connect. Answers have no limit: a session may wait long for admission."""
WAIT_HEADER = "X-RolloutPool-Queue-Seconds"
"""Header of the answer in which the router says how long it held the request."""
FINISH_SECONDS = 10.0
"""Longest time for the end of a session to be taken."""


@dataclass(frozen=True)
class Answer:
    """A complete answer."""

    text: str
    output_tokens: int
    wait_seconds: float | None
    """Time that the router held the request before it let it in; None where it does not say so."""


class AttemptFailed(Exception):
    """One attempt that brought no complete answer.

    Attributes:
        status: HTTP status, or None when the connection failed.
        retry_after: what the server asked for, in seconds.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class TrainerClient:
    """Speaks to one router, as `async with`."""

    def __init__(self, url: str, *, model: str) -> None:
        """Address the router.

        Args:
            url: base URL without /v1.
            model: served model name.
        """
        self._url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> TrainerClient:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def chat(
        self,
        messages: list[dict[str, str]],
        *,
        output_tokens: int,
        class_name: str,
        session_id: str | None,
    ) -> Answer:
        """Ask for a completion of exactly `output_tokens` tokens.

        Raises:
            AttemptFailed: connection error, an answer other than 200, or a generation that was aborted.
        """
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": output_tokens,
            "ignore_eos": True,
        }
        headers = {"Content-Type": "application/json", "X-Rollout-Class": class_name}
        if session_id:
            headers["X-Session-ID"] = session_id
        try:
            async with self._http.post(
                f"{self._url}/v1/chat/completions", data=json.dumps(body).encode(), headers=headers
            ) as response:
                payload = await response.read()
                return _answer(response.status, response.headers, payload)
        except (aiohttp.ClientError, OSError) as error:
            raise AttemptFailed(f"{type(error).__name__}: {error}") from error

    async def finish(self, session_id: str) -> None:
        """Tell the router that a session is over; best effort, as trainers do it."""
        try:
            async with self._http.post(
                f"{self._url}/finish_session",
                params={"session_id": session_id},
                timeout=aiohttp.ClientTimeout(total=FINISH_SECONDS),
            ) as response:
                await response.read()
        except (aiohttp.ClientError, OSError):
            pass  # the router ends the session by its idle time

    async def classes(self) -> tuple[str, ...]:
        """The classes that the router at the URL serves; empty if what answers there is none, or not yet.

        Raises:
            AttemptFailed: nothing answers.
        """
        try:
            async with self._http.get(
                f"{self._url}/admission/snapshot", timeout=aiohttp.ClientTimeout(total=CONNECT_SECONDS)
            ) as response:
                payload = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise AttemptFailed(f"{type(error).__name__}: {error}") from error
        try:
            return tuple(item.name for item in AdmissionSnapshot.model_validate_json(payload).classes)
        except ValidationError:
            return ()

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use TrainerClient in `async with`")
        return self._session


def _answer(status: int, headers: Mapping[str, str], payload: bytes) -> Answer:
    if status != 200:
        text = payload[:300].decode(errors="replace")
        raise AttemptFailed(
            f"HTTP {status}: {text}", status=status, retry_after=_number(headers.get("Retry-After"))
        )
    try:
        answer: dict[str, Any] = json.loads(payload)
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
        tokens = int((answer.get("usage") or {}).get("completion_tokens", 0))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise AttemptFailed(f"the answer is no chat completion: {error!r}", status=502) from error
    if choice.get("finish_reason") == "abort":
        raise AttemptFailed("the engine aborted the generation", status=503)
    return Answer(text=text, output_tokens=tokens, wait_seconds=_number(headers.get(WAIT_HEADER)))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None  # Retry-After may be a date
