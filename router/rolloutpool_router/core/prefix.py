"""Which engine has which prompt prefix in its cache: a bounded index.

It is fed by the router's own traffic (`record`: the engine was sent a prompt, so it holds it soon) and, where
engines publish KV events, by what they say themselves (`kv_blocks`). A key holds one bit for each engine, so
that a look-up costs the prompt's keys however many engines there are, and an engine is forgotten by giving up
its bit. There are two generations: when the younger is full it becomes the older one, and what was not
recorded of an engine since then is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rolloutpool_router.core.prompts import MAX_CHUNKS, PrefixKey

MAX_KEYS = 2**18
"""Keys in both generations; at 64 tokens a key, 16 million tokens of prompts."""
MAX_BITS = 1024
"""Bits of engines, those given up included; when they are used up the index starts anew."""
KEY_BYTES = 320
"""Memory of a key at most: its two hash table slots, the number itself and a mask of MAX_BITS. Measured: 150
where one engine holds a key, so 40 MB for MAX_KEYS."""

MANY = 4
"""Going through all engines is faster than through the bits of a mask from one engine in MANY on."""


class PrefixIndex:
    """Engines by prefix key."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._young: dict[PrefixKey, int] = {}
        """Bits of the engines that hold a key; recorded since the last change of generations."""
        self._old: dict[PrefixKey, int] = {}
        self._bits: dict[str, int] = {}
        """The bit of each engine that may hold a key."""
        self._told: set[str] = set()
        """Engines that tell what they evict."""
        self._names: dict[int, str] = {}
        """The engine of each bit."""
        self._live = 0
        """All bits of engines."""
        self._used_bits = 0
        """Bits that are in some mask, those given up included."""
        self._spare: list[int] = []
        """Bits that no mask holds any more."""
        self._given_up: tuple[list[int], list[int]] = ([], [])
        """Bits given up since the last change of generations, and before."""
        self._generation = max(1, max_keys // 2)

    def __len__(self) -> int:
        """Keys, those in both generations counted twice; never above the bound."""
        return len(self._young) + len(self._old)

    def record(self, keys: Sequence[PrefixKey], engine: str) -> None:
        """An engine holds the prefix with these keys from now on.

        O(keys), but O(1) for further samples of a prompt that it was sent lately: its last key covers all
        before it. Not so for engines that tell what they evict, since they may lack any part of it.
        """
        # The same int for all keys that only this engine holds: it takes no memory of its own.
        bit = self._bits.get(engine) or self._enter(engine)
        young = self._young
        if engine not in self._told and keys and young.get(keys[0], 0) & young.get(keys[-1], 0) & bit:
            return
        for key in keys:
            known = young.get(key)
            if known is not None:
                young[key] = known | bit
                continue
            if len(young) >= self._generation:
                self._age()
                young = self._young
            young[key] = bit

    def drop(self, key: PrefixKey, engine: str) -> None:
        """An engine has evicted what a key stands for."""
        self._told.add(engine)
        bit = self._bits.get(engine, 0)
        for generation in (self._young, self._old):
            mask = generation.get(key, 0)
            if mask & bit:
                if mask == bit:
                    del generation[key]
                else:
                    generation[key] = mask & ~bit

    def overlaps(self, keys: Sequence[PrefixKey]) -> Counter[str]:
        """Leading chunks that each engine holds, by engine; engines that hold none are absent."""
        found: Counter[str] = Counter()
        young, old = self._young, self._old
        holders, depth = self._live, 0
        for key in keys:
            if not holders:
                break
            still = holders & (young.get(key, 0) | old.get(key, 0))
            if still != holders:
                self._note(found, holders & ~still, depth)
                holders = still
            depth += 1
        self._note(found, holders, depth)
        return found

    def forget(self, engine: str) -> None:
        """An engine is gone, or its cache is empty; O(1)."""
        self._told.discard(engine)
        bit = self._bits.pop(engine, 0)
        if not bit:
            return
        del self._names[bit]
        self._live &= ~bit
        self._given_up[0].append(bit)
        if not self._bits:
            self._clear()

    def _note(self, found: Counter[str], mask: int, depth: int) -> None:
        """The engines of these bits hold this many chunks; O(engines of the mask)."""
        if not depth:
            return
        if MANY * mask.bit_count() > len(self._bits):
            for name, bit in self._bits.items():
                if mask & bit:
                    found[name] = depth
            return
        while mask:
            bit = mask & -mask
            found[self._names[bit]] = depth
            mask ^= bit

    def _enter(self, engine: str) -> int:
        if not self._spare and self._used_bits >= MAX_BITS:
            self._clear()
        if self._spare:
            bit = self._spare.pop()
        else:
            bit = 1 << self._used_bits
            self._used_bits += 1
        self._bits[engine] = bit
        self._names[bit] = engine
        self._live |= bit
        return bit

    def _age(self) -> None:
        """Change generations: bits that were given up before the last change are in no mask any more."""
        self._old, self._young = self._young, {}
        lately, before = self._given_up
        self._spare += before
        self._given_up = ([], lately)

    def _clear(self) -> None:
        self._young, self._old = {}, {}
        self._bits.clear()
        self._names.clear()
        self._spare.clear()
        self._given_up = ([], [])
        self._live = self._used_bits = 0


__all__ = ["MAX_CHUNKS", "PrefixIndex", "PrefixKey"]
