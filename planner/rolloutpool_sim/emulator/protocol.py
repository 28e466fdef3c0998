"""Requests of the OpenAI-compatible API as vLLM takes them: validation, and the sequences that they ask for.

Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolloutpool_sim.emulator import tokenizer
from rolloutpool_sim.emulator.errors import ApiError, bad_request
from rolloutpool_sim.emulator.outputs import drawn_length, output_seed, speaker
from rolloutpool_sim.engine import EngineRequest, Transfer

TokenId = Annotated[int, Field(ge=0)]
_REMOTE_FIELDS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_MAX_SEQUENCES = 1024  # of one request: prompts times n


class Lenient(BaseModel):
    """A body or a part of one; what is not named here is kept and changes nothing."""

    # Sampling parameters and extensions that change nothing here are accepted and ignored, as vLLM ignores
    # unknown ones.
    model_config = ConfigDict(extra="allow", frozen=True)


class StreamOptions(Lenient):
    """Options of a streamed response."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(Lenient):
    """The fields that completions and chat completions share."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1)] | None = 1
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    return_token_ids: bool | None = None


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    max_tokens: Annotated[int, Field(ge=1)] | None = 16


class ChatRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True


class TokenizeRequest(Lenient):
    """Body of `POST /tokenize`: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True


class DetokenizeRequest(Lenient):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[TokenId]


Body = TypeVar("Body", bound=BaseModel)


def parse_body(model: type[Body], raw: bytes) -> Body:
    """Validate a JSON body. Raises ApiError (400) naming the first field that is wrong, as vLLM does."""
    try:
        return model.model_validate_json(raw or b"null")
    except ValidationError as error:
        raise _invalid(error) from error


def as_chat(fields: Mapping[str, Any]) -> ChatRequest:
    """Make a chat completion of another API's request. Raises ApiError (400) as `parse_body` does."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error) from error


def _invalid(error: ValidationError) -> ApiError:
    errors = error.errors(include_url=False, include_input=False)
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if not isinstance(part, int)) or "body"
    count = f"{len(errors)} validation error{'s' if len(errors) > 1 else ''}"
    return bad_request(f"{count}: {where}: {first['msg']}", where)


def prompts_of(request: CompletionRequest) -> list[list[int]]:
    """Token ids of each prompt. Raises ApiError for an empty one."""
    if isinstance(request.prompt, str):
        prompts = [tokenizer.encode(request.prompt)]
    else:
        one_prompt = [part for part in request.prompt if isinstance(part, int)]
        texts_or_ids = [part for part in request.prompt if not isinstance(part, int)]
        several = [tokenizer.encode(part) if isinstance(part, str) else part for part in texts_or_ids]
        prompts = [one_prompt] if one_prompt else several
    if not prompts or not all(prompts):
        raise bad_request("the prompt must not be empty", "prompt")
    return prompts


def chat_prompt(request: ChatRequest | TokenizeRequest) -> list[int]:
    """Token ids of a conversation. Raises ApiError for messages that cannot be rendered."""
    try:
        return tokenizer.encode_chat(
            request.messages or [], tools=request.tools, generation_prompt=request.add_generation_prompt
        )
    except ValueError as error:
        raise bad_request(str(error), "messages") from error


def check_options(request: GenerationRequest, prompts: Sequence[Sequence[int]]) -> None:
    """Raise ApiError (400) for fields that contradict each other."""
    if request.stream_options is not None and not request.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    limit = max_tokens_of(request)
    if limit is not None and request.min_tokens > limit:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={limit}, got {request.min_tokens}.",
            "min_tokens",
        )
    if len(prompts) * (request.n or 1) > _MAX_SEQUENCES:
        raise bad_request(f"prompts times n must be at most {_MAX_SEQUENCES}", "n")


def max_tokens_of(request: GenerationRequest) -> int | None:
    """Return the request's limit of output tokens; the newer name wins in chat."""
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens
    return request.max_tokens


def transfer_of(request: GenerationRequest) -> Transfer:
    """Which part of disaggregated serving `kv_transfer_params` asks for.

    Raises ApiError if it lacks fields.
    """
    params = request.kv_transfer_params or {}
    if params.get("do_remote_prefill"):
        missing = [name for name in _REMOTE_FIELDS if params.get(name) is None]
        if missing:
            raise bad_request(f"do_remote_prefill needs {', '.join(missing)}", "kv_transfer_params")
        return Transfer.REMOTE_PREFILL
    return Transfer.REMOTE_DECODE if params.get("do_remote_decode") else Transfer.NONE


def sequences(
    request: GenerationRequest,
    prompts: Sequence[Sequence[int]],
    *,
    request_id: str,
    sample_id: str,
    transfer: Transfer,
    max_model_len: int,
    server_seed: int,
    mean_output_tokens: float,
) -> list[EngineRequest]:
    """Return the sequences of a request, `n` for each prompt, in the order of the response's choices.

    Outputs depend on the server's seed, the prompt and, unless the request has a seed or temperature 0,
    `sample_id`.
    """
    made: list[EngineRequest] = []
    for prompt in prompts:
        limit = min(max_tokens_of(request) or max_model_len, max(max_model_len - len(prompt), 1))
        for sample in range(request.n or 1):
            fixed = request.seed if request.seed is not None else 0 if request.temperature == 0 else None
            seed = output_seed(
                server_seed, prompt, f"{sample_id}/{sample}" if fixed is None else fixed + sample
            )
            stop_after = None if request.ignore_eos else drawn_length(seed, mean=mean_output_tokens)
            if stop_after is not None:
                stop_after = max(stop_after, request.min_tokens + 1)
            made.append(
                EngineRequest(
                    request_id=f"{request_id}-{len(made)}",
                    prompt=prompt,
                    max_tokens=limit,
                    next_token=speaker(
                        seed, stop_after=stop_after, after_space=tokenizer.opens_answer(prompt)
                    ),
                    stop_after=stop_after,
                    cache_salt=request.cache_salt or "",
                    transfer=transfer,
                )
            )
    return made
