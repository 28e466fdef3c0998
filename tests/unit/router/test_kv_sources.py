"""Where a router looks for the KV events of its engines."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.kv_sources import KvSource, kv_sources
from rolloutpool_router.core.view import build_view
from rolloutpool_router.testing import pool_object


def sources(url: str, spec: dict[str, Any], **endpoint: int) -> dict[str, KvSource]:
    body = pool_object({"e": url}, caps={"rlvr": 1, "rlhf": 1, "agentic": 1})
    body["spec"]["engine"] = {"kvEvents": spec, "blockSize": 32}
    body["status"]["endpoints"]["admin"][0] |= endpoint
    pool = parse_pool(body)
    return kv_sources(build_view(pool, pool.status.admission, {}))


@pytest.mark.parametrize(
    ("url", "spec", "endpoint", "expected"),
    [
        pytest.param(
            "http://pool-0.pool-engines.ns.svc:8000",
            {"enabled": True},
            {},
            ("tcp://pool-0.pool-engines.ns.svc:5557", "tcp://pool-0.pool-engines.ns.svc:5558"),
            id="ports-of-the-spec-by-default",
        ),
        pytest.param(
            "http://h:8000",
            {"enabled": True, "port": 7001, "replayPort": 7002},
            {},
            ("tcp://h:7001", "tcp://h:7002"),
            id="ports-of-the-spec",
        ),
        pytest.param(
            "http://127.0.0.1:20000",
            {"enabled": True},
            {"kvEventsPort": 20001, "kvReplayPort": 20002},
            ("tcp://127.0.0.1:20001", "tcp://127.0.0.1:20002"),
            id="ports-of-its-own",
        ),
        pytest.param(
            "http://[fd00::1]:8000",
            {"enabled": True},
            {},
            ("tcp://[fd00::1]:5557", "tcp://[fd00::1]:5558"),
            id="ipv6",
        ),
    ],
)
def test_where_an_engine_publishes(
    url: str, spec: dict[str, Any], endpoint: dict[str, int], expected: tuple[str, str]
) -> None:
    assert sources(url, spec, **endpoint) == {"e": KvSource(*expected, model="m", block_size=32)}


@pytest.mark.parametrize(
    ("url", "spec"),
    [
        pytest.param("http://h:8000", {}, id="not-enabled"),
        pytest.param("http://h:8000", {"enabled": False, "port": 7001}, id="disabled"),
        pytest.param("no-url", {"enabled": True}, id="no-host"),
        pytest.param("http://[half:8000", {"enabled": True}, id="half-an-address"),
    ],
)
def test_who_is_not_followed(url: str, spec: dict[str, Any]) -> None:
    assert sources(url, spec) == {}


def test_without_a_view_nobody_is_followed() -> None:
    assert kv_sources(None) == {}
