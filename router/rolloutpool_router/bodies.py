"""A request's body as the router reads it: split into its top-level fields, never parsed whole.

A prompt of a million tokens is a few megabytes of JSON; building Python objects of it would hold up every
other request, so the fields stay raw bytes until somebody asks for a small one. What is forwarded is the body
as it came. Bodies larger than the window are read only as far as it: the rest streams through once the
request has entered, and headers must tell session and class, since the fields may be in the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.prefix import PrefixKey
from rolloutpool_router.core.prompts import Prompt, read_prompt

WINDOW_BYTES = 4 * 1024 * 1024
"""How much of a body is read before its session enters; longer ones stream. Splitting this takes 4 ms."""
TIGHT_WINDOW_BYTES = 64 * 1024
"""The same while the router holds as much as its budget already."""
BUDGET_BYTES = 1024 * 1024 * 1024
"""Bytes of bodies held at once from which on the tight window is used: bounds what 10,000 waiters hold."""
BUDGET_PART = 0.25
"""The same as a part of the memory that the process may have, where that is less."""
MAX_BODY_BYTES = 512 * 1024 * 1024
"""Largest request body; vllm-router's limit."""
SMALL_FIELD_BYTES = 64 * 1024
"""Longest field that is parsed when its value is asked for; a longer one names no session, class or model."""
KEPT_BODIES = 128
"""How many of the bodies that were split last are kept: the samples of one prompt come in a row."""
KEPT_BYTES = 64 * 1024
"""The longest of them, so that they take 10 MB at most."""

_SPLIT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Message(msgspec.Struct):
    """What is read of a chat message or of an item of /v1/responses."""

    role: Any = None
    type: Any = None


_ROLES = msgspec.json.Decoder(list[_Message])
_PROMPTS = msgspec.json.Decoder(list[msgspec.Raw])
_HISTORY_ROLES = frozenset({"assistant", "tool", "function"})
_HISTORY_ITEMS = frozenset({"function_call", "function_call_output", "reasoning"})


class Placing(NamedTuple):
    """What is asked of a prompt to find it a place."""

    keys: tuple[PrefixKey, ...]
    """Of its leading chunks (`core.prompts`)."""
    group: bytes
    """The same for all samples of one prompt."""
    has_history: bool
    """It holds an earlier answer."""

    @staticmethod
    def of(prompt: Prompt, *, has_history: bool) -> Placing:
        """Of this prompt; hashes it, which costs 20 us for 32 KB."""
        return Placing(prompt.prefix_keys(), prompt.group(), has_history)


class Fields(Mapping[str, Any]):
    """The top-level fields of a JSON object; a value is parsed when it is asked for."""

    __slots__ = ("_placing", "_read_as", "raw")

    def __init__(self, raw: Mapping[str, msgspec.Raw]) -> None:
        self.raw = raw
        """Raw JSON by name."""
        self._placing: Placing | None = None
        self._read_as: tuple[str, int] | None = None
        """Model and block size with which the prompt was read."""

    def __getitem__(self, name: str) -> Any:
        return _small(self.raw[name])

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field; what the mixin does costs an exception where there is none."""
        value = self.raw.get(name)
        return default if value is None else _small(value)

    def __contains__(self, name: object) -> bool:
        return name in self.raw

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def has_history(self) -> bool:
        """Whether a chat holds an earlier answer: an assistant or tool message. Completions cannot tell."""
        if "previous_response_id" in self.raw and self["previous_response_id"]:
            return True
        messages = self.raw.get("messages") or self.raw.get("input")
        if messages is None:
            return False
        try:
            items = _ROLES.decode(messages)
        except (msgspec.DecodeError, RecursionError):
            return False
        return any(_one_of(item.role, _HISTORY_ROLES) or _one_of(item.type, _HISTORY_ITEMS) for item in items)

    def placing(self, model: str, block_size: int) -> Placing:
        """What is asked of the prompt to find it a place; kept, since equal bodies share their fields.

        Args:
            model: what a body without a model means.
            block_size: KV block size of the engines, in tokens.
        """
        if self._placing is None or self._read_as != (model, block_size):
            prompt = read_prompt(self.raw, model=model, block_size=block_size)
            self._placing = Placing.of(prompt, has_history=self.has_history())
            self._read_as = (model, block_size)
        return self._placing

    def prompts(self) -> int:
        """Prompts that a completion asks for: texts or lists of token ids in a list are several."""
        prompt = self.raw.get("prompt")
        if prompt is None or not bytes(memoryview(prompt)[:64]).lstrip().startswith((b"[[", b'["')):
            return 1
        try:
            return len(_PROMPTS.decode(prompt))
        except (msgspec.DecodeError, RecursionError):
            return 1

    def replaced(self, values: Mapping[str, Any], *, drop: frozenset[str] = frozenset()) -> bytes:
        """The object with other values for some fields; all else is byte for byte what it was."""
        kept: dict[str, Any] = {name: value for name, value in self.raw.items() if name not in drop}
        return msgspec.json.encode(kept | dict(values))


NO_FIELDS = Fields({})


def split(raw: bytes) -> Fields | Refusal:
    """The fields of a body."""
    try:
        return Fields(_SPLIT.decode(raw))
    except msgspec.ValidationError:
        return Refusal(Outcome.INVALID_BODY, "the body must be a JSON object")
    except (msgspec.DecodeError, RecursionError) as error:
        return Refusal(Outcome.INVALID_BODY, f"the body is no valid JSON: {error}")


class Lately:
    """The bodies that were split last: samples of one prompt mostly come as equal bodies, in a row."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[bytes, Fields]] = {}
        """By hash of the body, the oldest first."""

    def split(self, raw: bytes) -> Fields | Refusal:
        """The fields of a body; equal bodies share them."""
        if len(raw) > KEPT_BYTES:
            return split(raw)
        digest = xxh3_64_intdigest(raw)
        kept = self._kept.get(digest)
        if kept is not None and kept[0] == raw:
            return kept[1]
        fields = split(raw)
        if isinstance(fields, Fields):
            if len(self._kept) >= KEPT_BODIES:
                del self._kept[next(iter(self._kept))]
            self._kept[digest] = raw, fields
        return fields


class BodyTooLong(Exception):
    """A body without announced length went on beyond MAX_BODY_BYTES."""


class Source(Protocol):
    """Where the rest of a body comes from."""

    def body_rest(self) -> AsyncIterator[bytes]:
        """What follows the bytes that were read."""


@dataclass(slots=True)
class Budget:
    """What the router holds of bodies."""

    held: int = 0
    """Bytes of those that are on their way."""
    most: int = BUDGET_BYTES
    """Bytes from which on less of each further body is read."""
    lately: Lately = field(default_factory=Lately)

    @staticmethod
    def within(memory_bytes: int | None) -> Budget:
        """The budget of a process that may have so much memory; None: no limit."""
        if memory_bytes is None:
            return Budget()
        return Budget(most=min(BUDGET_BYTES, int(BUDGET_PART * memory_bytes)))

    @property
    def window(self) -> int:
        """How much of the next body may be read, in bytes."""
        return WINDOW_BYTES if self.held < self.most else TIGHT_WINDOW_BYTES

    @contextmanager
    def reserved(self, length: int | None) -> Iterator[int]:
        """The window of a body that is read within the block, which holds as much from the start.

        Args:
            length: of the body, in bytes; None: not known.
        """
        window = self.window
        expected = window if length is None else min(length, window)
        self.held += expected
        try:
            yield window
        finally:
            self.held -= expected


@dataclass(slots=True, eq=False)
class Body:
    """A request's body on its way through; let go as soon as nobody can need it again."""

    first: bytes
    """What was read before the request entered."""
    complete: bool
    """Whether that is all."""
    length: int | None
    """Length of the whole as the client said; None if it did not."""
    source: Source
    budget: Budget
    size: int = field(init=False)
    """Bytes of the body, as far as known."""
    streamed: bool = False
    """Some of the rest has been taken, so the body cannot be sent a second time."""

    def __post_init__(self) -> None:
        self.size = max(self.length or 0, len(self.first))
        self.budget.held += len(self.first)

    @property
    def repeatable(self) -> bool:
        """Whether the body may be sent (again)."""
        return self.complete or not self.streamed

    def rest(self) -> AsyncIterator[bytes] | None:
        """What follows `first`, once; None if nothing does."""
        return None if self.complete else self._bounded_rest()

    async def _bounded_rest(self) -> AsyncIterator[bytes]:
        self.streamed = True  # only now: a connection that was not made has taken nothing of it
        size = len(self.first)
        async for piece in self.source.body_rest():
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise BodyTooLong
            yield piece

    def release(self) -> None:
        """The body is not needed any more. Safe to call again."""
        self.budget.held -= len(self.first)
        self.first = b""


def _small(value: msgspec.Raw) -> Any:
    """What a field holds; None where that is long, or no JSON that Python can hold."""
    if len(memoryview(value)) > SMALL_FIELD_BYTES:
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None


def _one_of(value: Any, names: frozenset[str]) -> bool:
    return isinstance(value, str) and value in names
