"""Names are looked up once for many connections."""

import asyncio

import pytest

from rolloutpool_router.wire import names as wire_names
from rolloutpool_router.wire.names import Names


class Directory:
    """A directory that counts who asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.entries = {"engine": ["10.0.0.1", "10.0.0.2"]}

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        await self.go.wait()
        if host not in self.entries:
            raise OSError("no such name")
        return self.entries[host]


async def test_many_ask_once() -> None:
    directory = Directory()
    names = Names(directory)
    asking = [asyncio.create_task(names.addresses("engine")) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()
    directory.go.set()
    assert [await each for each in asking[1:]] == [["10.0.0.1", "10.0.0.2"]] * 4
    assert await names.addresses("engine") == ["10.0.0.1", "10.0.0.2"]
    assert directory.asked == ["engine"]


async def test_addresses_change(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory()
    directory.go.set()
    names = Names(directory)
    await names.addresses("engine")
    directory.entries["engine"] = ["10.0.0.3"]
    names.forget("engine")
    assert await names.addresses("engine") == ["10.0.0.3"]
    directory.entries["engine"] = ["10.0.0.4"]
    monkeypatch.setattr(wire_names, "KEPT_SECONDS", 0.0)
    assert await names.addresses("engine") == ["10.0.0.4"]


async def test_a_failure_is_not_kept() -> None:
    directory = Directory()
    directory.go.set()
    names = Names(directory)
    with pytest.raises(OSError, match="no such name"):
        await names.addresses("new")
    directory.entries["new"] = ["10.0.0.9"]
    assert await names.addresses("new") == ["10.0.0.9"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1"])
async def test_addresses_are_not_looked_up(address: str) -> None:
    directory = Directory()
    assert await Names(directory).addresses(address) == [address]
    assert not directory.asked


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_names, "MAX_KEPT", 3)
    directory = Directory()
    directory.go.set()
    names = Names(directory)
    for index in range(10):
        directory.entries[f"engine-{index}"] = [f"10.0.0.{index}"]
        await names.addresses(f"engine-{index}")
    assert len(names._known) <= 3
