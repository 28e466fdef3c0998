"""Prefix hashes of full blocks: each covers its own tokens and, through its parent, all before.

The hashes are 64-bit and not cryptographic: they are compared within one engine only, where a chance
collision among a million blocks has a probability of about 1e-8. They depend on integers alone, so they
are the same in every process.
"""

import hashlib
from collections.abc import Sequence


def salt_seed(cache_salt: str) -> int:
    """Return the parent hash of a first block: requests share prefixes only within one `cache_salt`."""
    return int.from_bytes(hashlib.blake2b(cache_salt.encode(), digest_size=7).digest())


def extend_hashes(hashes: list[int], tokens: Sequence[int], *, block_size: int, seed: int) -> None:
    """Append to `hashes` those of the full blocks of `tokens` that it lacks. Costs only the new blocks."""
    parent = hashes[-1] if hashes else seed
    for start in range(len(hashes) * block_size, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, *tokens[start : start + block_size]))
        hashes.append(parent)
