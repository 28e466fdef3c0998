"""What the emulated model says and how long it talks.

Pure functions of seeds, so that runs can be repeated.
"""

import math
from collections.abc import Sequence
from functools import partial

from rolloutpool_sim.emulator.tokenizer import END_OF_TURN, WORDS

_MASK = (1 << 64) - 1


def mix(a: int, b: int) -> int:
    """Mix two integers into 64 well-spread bits (the finaliser of splitmix64)."""
    x = (a + b * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def output_seed(server_seed: int, prompt: Sequence[int], sample: int | str) -> int:
    """Seed of one output: fixed by server seed, prompt and sample (a request's seed, or its id)."""
    if isinstance(sample, str):
        sample = int.from_bytes(sample.encode()[-64:])
    return mix(mix(server_seed, hash(tuple(prompt))), mix(0, sample))


def drawn_length(seed: int, *, mean: float) -> int:
    """Draw the tokens after which the model ends by itself, at least 1: exponential with the given mean."""
    uniform = (mix(seed, -1) + 0.5) / (_MASK + 1)
    return max(1, math.ceil(-mean * math.log(uniform)))


def speaker(seed: int, *, stop_after: int | None, after_space: bool) -> "partial[int]":
    """Return the function from a position to its output token id: words, and end of turn at `stop_after`.

    `after_space` makes the first word begin without a space, as after a chat template's header.
    """
    return partial(_token, seed, stop_after, after_space)


def _token(seed: int, stop_after: int | None, after_space: bool, position: int) -> int:
    if stop_after is not None and position + 1 >= stop_after:
        return END_OF_TURN
    word = mix(seed, position) % len(WORDS)
    return word + len(WORDS) if after_space and position == 0 else word
