"""Who of a local pool's processes answers."""

from __future__ import annotations

import asyncio

from rolloutpool_operator.local.probes import Prober
from rolloutpool_router.testing import until


async def test_an_address_that_no_client_takes_is_one_that_does_not_answer() -> None:
    prober = Prober(lambda: {"e0": "http://a..ä:1/v1/models"}, on_change=lambda: None)
    probing = asyncio.create_task(prober.run())
    await until(lambda: prober.silent("e0") or probing.done())
    assert prober.silent("e0")
    assert not prober.ready("e0")
    probing.cancel()
