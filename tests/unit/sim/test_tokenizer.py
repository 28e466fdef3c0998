"""The emulator's tokenizer, chat template and outputs: what prefix caching relies on."""

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_sim.emulator.outputs import drawn_length, mix, output_seed, speaker
from rolloutpool_sim.emulator.tokenizer import (
    END_OF_TURN,
    VOCABULARY,
    WORDS,
    decode,
    detokenize,
    encode,
    encode_chat,
)

ENGLISH = (
    "Prefix-aware routers decide where a request goes, never whether it may enter. Under load the classes"
    " evict each other's cached keys and values, work is computed again, and the throughput collapses."
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("", 0, id="empty"),
        pytest.param("word", 1, id="a word"),
        pytest.param("longer words", 4, id="pieces of four"),
        pytest.param("a  b\n\nc", 5, id="spaces before a piece belong to it, one each"),
        pytest.param("日本語のテキスト", 2, id="no spaces"),
    ],
)
def test_pieces(text: str, count: int) -> None:
    assert len(encode(text)) == count


def test_about_four_bytes_a_token() -> None:
    assert 3.0 < len(ENGLISH.encode()) / len(encode(ENGLISH)) < 5.0


@given(st.text(), st.text())
def test_a_longer_text_begins_with_the_tokens_of_the_shorter_up_to_its_last_word(
    text: str, more: str
) -> None:
    short, long = encode(text + " end"), encode(text + " end" + more)
    assert long[: len(short) - 1] == short[:-1]
    assert all(0 <= token < VOCABULARY for token in long)


@given(st.integers(0, 2**63), st.integers(1, 60), st.text(), st.text())
def test_generated_text_keeps_its_tokens_where_it_is_quoted(
    seed: int, count: int, before: str, after: str
) -> None:
    say = speaker(seed, stop_after=None, after_space=False)
    output = [say(position) for position in range(count)]
    prompt = encode(before)
    assert encode(before + decode(output) + after)[: len(prompt) + count] == prompt + output


@given(
    st.lists(st.text(max_size=20), min_size=1, max_size=4),
    st.integers(0, 2**40),
    st.integers(2, 20),
    st.booleans(),
)
def test_each_turn_begins_with_the_last_turn_and_its_answer(
    questions: list[str], seed: int, length: int, stops: bool
) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You help."}]
    before: list[int] = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        prompt = encode_chat(messages)
        assert prompt[: len(before)] == before
        say = speaker(seed, stop_after=length if stops else None, after_space=True)
        output = [say(position) for position in range(length)]
        assert (output[-1] == END_OF_TURN) == stops
        messages.append({"role": "assistant", "content": decode(output)})
        before = prompt + output


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(
            {"content": "hi there"}, {"content": [{"type": "text", "text": "hi there"}]}, True, id="parts"
        ),
        pytest.param({"content": "hi"}, {"content": "ho"}, False, id="text"),
        pytest.param({"content": None}, {"content": ""}, True, id="none"),
        pytest.param({"content": ""}, {"content": "", "tool_calls": [{"id": "1"}]}, False, id="tool calls"),
        pytest.param({"content": ["a", {"type": "image_url"}]}, {"content": "a"}, False, id="other parts"),
    ],
)
def test_contents(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    ours, theirs = (encode_chat([{"role": "user", **message}]) for message in (one, other))
    assert (ours == theirs) is same


def test_chat_needs_roles_and_renders_tools_first() -> None:
    with pytest.raises(ValueError, match=r"messages\[1\] has no role"):
        encode_chat([{"role": "user"}, {"content": "x"}])
    messages = [{"role": "user", "content": "hi"}]
    assert encode_chat(messages, tools=[{"name": "t"}]) != encode_chat(messages)
    assert encode_chat(messages, generation_prompt=False) == encode_chat(messages)[:-5]


def test_outputs_are_words_fixed_by_their_seed() -> None:
    say = speaker(7, stop_after=5, after_space=False)
    output = [say(position) for position in range(5)]
    assert output == [speaker(7, stop_after=5, after_space=False)(position) for position in range(5)]
    assert output[-1] == END_OF_TURN
    words = decode(output).split()
    assert len(words) == 4
    assert set(words) <= set(WORDS)
    assert decode([WORDS.index("bobo"), END_OF_TURN, 100000]) == " bobo"
    assert speaker(8, stop_after=None, after_space=False)(0) != output[0]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        pytest.param((1, [1, 2], "id"), True, id="same"),
        pytest.param((2, [1, 2], "id"), False, id="server seed"),
        pytest.param((1, [1, 3], "id"), False, id="prompt"),
        pytest.param((1, [1, 2], "ie"), False, id="request id"),
        pytest.param((1, [1, 2], 5), False, id="request seed"),
    ],
)
def test_output_seeds(other: tuple[int, list[int], str | int], same: bool) -> None:
    assert (output_seed(1, [1, 2], "id") == output_seed(*other)) is same


def test_lengths_are_exponential_with_the_given_mean() -> None:
    lengths = [drawn_length(seed, mean=100.0) for seed in range(4000)]
    assert min(lengths) >= 1
    assert sum(lengths) / len(lengths) == pytest.approx(100, rel=0.05)
    assert sum(length > 100 for length in lengths) / len(lengths) == pytest.approx(0.368, abs=0.03)
    assert len(set(islice(lengths, 50))) > 30


def test_mixing_spreads_neighbours() -> None:
    values = [mix(1, number) for number in range(1000)]
    assert len({value % 6400 for value in values}) > 900
    assert all(0 <= value < 2**64 for value in values)


def test_a_token_that_was_never_read_stands_for_a_word() -> None:
    """Engines behind a router do not read the same texts: a text that comes back has as many tokens."""
    unread = list(range(127_000, 127_020))
    assert len(encode(detokenize(unread))) == len(unread)
    assert detokenize([END_OF_TURN]) == ""
    text = "never read, until now 4711"
    assert detokenize(encode(text)) == text
