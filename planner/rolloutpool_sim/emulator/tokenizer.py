"""A deterministic stand-in for a model's tokenizer and chat template, about four bytes of English a token.

Real tokenizers need files of megabytes; serving, caching and routing only need tokens with the same
structure. A token is up to four visible characters with the white space before them. So the tokens of a text
are a prefix of those of a longer one, up to its last word, and the words that the emulator generates, always
four letters, keep their tokens wherever they are quoted: a conversation's next turn begins with exactly the
tokens of the last one.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

VOCABULARY = 128256
END_OF_TURN = 128009
_BEGIN_OF_TEXT, _START_HEADER, _END_HEADER = 128000, 128006, 128007

_PIECE = re.compile(r"\s?\S{1,4}|\s")
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aeiou"
WORDS = tuple(a + b + c + d for a in _CONSONANTS for b in _VOWELS for c in _CONSONANTS for d in _VOWELS)
"""What the emulator says. Token `i` is a space and word `i`; token `len(WORDS) + i` is the word alone."""

_TEXT_OF = (*(" " + word for word in WORDS), *WORDS)
_OTHER_IDS = (16000, _BEGIN_OF_TEXT)  # all other pieces are hashed into this range; clashes do no harm
_MAX_REMEMBERED = 65536
_ids: dict[str, int] = {text: token for token, text in enumerate(_TEXT_OF)}
_texts: dict[int, str] = {}
"""What this process has read, by token; of texts with the same token the first."""


def encode(text: str) -> list[int]:
    """Return the token ids of `text`."""
    return [_ids.get(piece) or _piece_id(piece) for piece in _PIECE.findall(text)]


def decode(tokens: Iterable[int]) -> str:
    """Return the text of generated tokens; all others, end of turn too, have none."""
    return "".join(_TEXT_OF[token] for token in tokens if token < len(_TEXT_OF))


def detokenize(tokens: Iterable[int]) -> str:
    """Return the text of any tokens; control tokens have none.

    A token that this process has never read stands for some text all the same: for a word, so that the text
    has as many tokens.
    """
    return "".join(
        _TEXT_OF[token] if token < len(_TEXT_OF) else _texts.get(token) or _TEXT_OF[token % len(WORDS)]
        for token in tokens
        if token < _BEGIN_OF_TEXT
    )


def opens_answer(prompt: Sequence[int]) -> bool:
    """Whether the model's words begin an answer of their own, as after a chat template's header."""
    return bool(prompt) and prompt[-1] == _END_HEADER


def encode_chat(
    messages: Sequence[Mapping[str, Any]], *, tools: object = None, generation_prompt: bool = True
) -> list[int]:
    """Render messages as Llama 3's chat template does, and return the token ids.

    Each part is tokenised by itself, so turn k's prompt followed by its output is a prefix of turn k+1's
    prompt. Raises ValueError for a message without a role.
    """
    tokens = [_BEGIN_OF_TEXT]
    if tools:
        tokens += [*_header("tools"), *encode(json.dumps(tools, sort_keys=True)), END_OF_TURN]
    for number, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            raise ValueError(f"messages[{number}] has no role")
        tokens += [*_header(role), *encode(_content(message)), END_OF_TURN]
    if generation_prompt:
        tokens += _header("assistant")
    return tokens


def _piece_id(piece: str) -> int:
    token = _ids.get(piece)
    if token is None:
        low, high = _OTHER_IDS
        token = low + crc32(piece.encode("utf-8", "surrogatepass")) % (high - low)
        if len(_ids) < _MAX_REMEMBERED:
            _ids[piece] = token
            _texts.setdefault(token, piece)
    return token


def _header(role: str) -> list[int]:
    return [_START_HEADER, *encode(role), _END_HEADER]


def _content(message: Mapping[str, Any]) -> str:
    """Text of a message: its content (a string or a list of parts), then its tool calls as JSON."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part) for part in content)
    text = content if isinstance(content, str) else ""
    calls = message.get("tool_calls")
    return text + json.dumps(calls, sort_keys=True) if calls else text


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text = part.get("text")
        return text if isinstance(text, str) else json.dumps(part, sort_keys=True)
    return ""
