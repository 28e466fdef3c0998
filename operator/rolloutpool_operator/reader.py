"""What the operator reads from routers and engines over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_router.core.pressure import NO_TOTALS, EngineTotals

TIMEOUT_SECONDS = 2.0
"""Longest time for one answer."""
MAX_BYTES = 8_000_000
"""Largest answer that is read."""
CACHE_INFO = "vllm:cache_config_info"
QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"
PREEMPTIONS = "vllm:num_preemptions_total"
KV_USAGE = "vllm:kv_cache_usage_perc"


class ReadError(Exception):
    """A router or engine did not answer as it should."""


@dataclass(frozen=True)
class EngineMetrics:
    """What an engine says of its KV cache."""

    kv_tokens: int
    """Tokens that it can hold, over all its data-parallel ranks."""
    totals: EngineTotals = NO_TOTALS
    """Its counters."""


class Reader(Protocol):
    """Reads routers and engines. Both methods raise ReadError."""

    async def snapshot(self, url: str) -> AdmissionSnapshot:
        """The admission snapshot of the router with this base URL."""
        ...

    async def metrics(self, url: str) -> EngineMetrics:
        """The metrics of the engine with this base URL."""
        ...


class HttpReader:
    """Reader over HTTP."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Read; one answer may take `timeout_seconds` in all."""
        self._timeout = timeout_seconds
        self._client = httpx.AsyncClient(timeout=timeout_seconds, trust_env=False)

    async def snapshot(self, url: str) -> AdmissionSnapshot:
        """See Reader."""
        text = await self._get(f"{url}/admission/snapshot")
        try:
            return AdmissionSnapshot.model_validate_json(text)
        except ValidationError as error:
            raise ReadError(f"{url}: malformed snapshot: {error.error_count()} errors") from error

    async def metrics(self, url: str) -> EngineMetrics:
        """See Reader."""
        return parse_metrics(await self._get(f"{url}/metrics"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def _get(self, url: str) -> str:
        try:
            # The client's own timeout is one of each read: an answer that drips would hold the loop up.
            async with asyncio.timeout(self._timeout), self._client.stream("GET", url) as response:
                response.raise_for_status()
                content = bytearray()
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > MAX_BYTES:
                        raise ReadError(f"{url}: answer is larger than {MAX_BYTES} bytes")
                return content.decode(errors="replace")
        except (httpx.HTTPError, TimeoutError) as error:
            raise ReadError(f"{url}: {str(error) or type(error).__name__}") from error


def parse_metrics(text: str) -> EngineMetrics:
    """Read an engine's metrics page (Prometheus text); only the families needed are parsed.

    Raises:
        ReadError: where the engine tells no KV capacity.
    """
    wanted = (CACHE_INFO, QUERIES, HITS, PREEMPTIONS, KV_USAGE)
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    try:
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        samples = [sample for family in families for sample in family.samples]
        tokens = sum(_tokens(sample.labels) for sample in samples if sample.name == CACHE_INFO)
        values = {name: [sample.value for sample in samples if sample.name == name] for name in wanted}
        totals = EngineTotals(
            prefix_queries=int(sum(values[QUERIES])),
            prefix_hits=int(sum(values[HITS])),
            preemptions=int(sum(values[PREEMPTIONS])),
            kv_usage=max(values[KV_USAGE], default=0.0),
        )
    except (ValueError, OverflowError, KeyError) as error:
        raise ReadError(f"the engine's metrics cannot be read: {error}") from error
    if tokens <= 0:
        raise ReadError(f"the engine tells no {CACHE_INFO}")
    return EngineMetrics(kv_tokens=tokens, totals=totals)


def _tokens(found: dict[str, str]) -> int:
    size = found.get("kv_cache_size_tokens", "")
    if size.isdigit():
        return int(size)
    return int(found["num_gpu_blocks"]) * int(found["block_size"])
