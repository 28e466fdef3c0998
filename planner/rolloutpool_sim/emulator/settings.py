"""The emulator's settings, from `vllm serve`'s flags and a few variables of the environment. Pure.

Flags that the emulator does not know are returned, not refused, so that the command line of a real engine
works.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from rolloutpool_sim.engine import EngineConfig
from rolloutpool_sim.profile import (
    ParallelismProfile,
    PerformanceProfile,
    ProfileError,
    load_builtin,
    parse_profile,
)

_MODEL_CONTEXT = 131072  # of the emulated model; --max-model-len lowers it
_MOST_SEQUENCES = 1024  # vLLM's default on an 80 GB GPU, unless the token budget is smaller
_USAGE = "usage: python3 -m rolloutpool_sim.emulator [serve] MODEL [flags of vllm serve]"


class SettingsError(ValueError):
    """A flag or variable is wrong; the message is one line that says which and how to put it right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KvEventsSettings:
    """Where KV events are published, in ZeroMQ's addresses; defaults are vLLM's.

    `buffer_steps` is how many past batches can be repeated at `replay_endpoint`. Where vLLM connects to an
    address without a star, the emulator listens on it.
    """

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    topic: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What one emulator serves and how. `shutdown_timeout` is in wall seconds.

    `time_scale` is engine seconds per wall second. `kv_transfer` says whether a KV connector is configured;
    without one, vLLM ignores `kv_transfer_params`. `mean_output_tokens` is of outputs that no limit cuts.
    `dev_mode` opens the endpoints for weight synchronisation, `weight_transfer` lets weights be updated;
    `scale_out` opens those for tokens in and out.
    """

    model: str
    served_names: tuple[str, ...]
    host: str
    port: int
    engine: EngineConfig
    profile: PerformanceProfile
    tensor_parallel: int
    pipeline_parallel: int
    time_scale: float
    seed: int
    mean_output_tokens: float
    shutdown_timeout: float
    kv_transfer: bool
    side_channel_host: str
    prompt_tokens_details: bool
    dev_mode: bool
    weight_transfer: bool
    scale_out: bool
    kv_events: KvEventsSettings | None
    ignored_flags: tuple[str, ...]

    @property
    def speed(self) -> ParallelismProfile:
        """The profile's entry for the configured parallelism."""
        return self.profile.at(self.tensor_parallel, self.pipeline_parallel)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read the command line (without the program's name) and environment. Raises SettingsError."""
    words = list(arguments[1:] if arguments[:1] == ["serve"] else arguments)
    model = words.pop(0) if words and not words[0].startswith("-") else None
    flags, ignored = _parser().parse_known_args([_dashed(word) for word in words])
    model = model or flags.model
    if not model:
        raise SettingsError(f"no model given; {_USAGE}")
    profile = _profile(environment.get("EMULATOR_PROFILE", "emulated-8b-h100"))
    try:
        speed = profile.at(flags.tensor_parallel_size, flags.pipeline_parallel_size)
        engine = _engine(flags, speed)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return Settings(
        model=model,
        served_names=tuple(flags.served_model_name or [model]),
        host=flags.host,
        port=flags.port,
        engine=engine,
        profile=profile,
        tensor_parallel=flags.tensor_parallel_size,
        pipeline_parallel=flags.pipeline_parallel_size,
        time_scale=_positive(environment, "EMULATOR_TIME_SCALE", 1.0),
        seed=_integer(environment, "EMULATOR_SEED", flags.seed),
        mean_output_tokens=_positive(environment, "EMULATOR_OUTPUT_TOKENS", 256.0),
        shutdown_timeout=flags.shutdown_timeout,
        kv_transfer=flags.kv_transfer_config is not None,
        side_channel_host=environment.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        prompt_tokens_details=flags.enable_prompt_tokens_details,
        dev_mode=environment.get("VLLM_SERVER_DEV_MODE", "0") == "1",
        weight_transfer=flags.weight_transfer_config is not None,
        scale_out=flags.enable_scale_out,
        kv_events=_kv_events(flags.kv_events_config),
        ignored_flags=tuple(ignored),
    )


def _parser() -> _Parser:
    parser = _Parser(prog="rolloutpool_sim.emulator", usage=_USAGE, allow_abbrev=False)
    add = parser.add_argument
    add("--model")
    add("--served-model-name", nargs="+", metavar="NAME")
    add("--host", default="0.0.0.0")
    add("--port", type=_port, default=8000, help="0 takes a free port and logs it")
    add("--tensor-parallel-size", "-tp", type=_count, default=1)
    add("--pipeline-parallel-size", "-pp", type=_count, default=1)
    add("--block-size", type=_count, default=16)
    add("--max-model-len", type=_length)
    add("--max-num-seqs", type=_count)
    add("--max-num-batched-tokens", type=_count, default=8192)
    add("--num-gpu-blocks-override", type=_count)
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    add("--enable-prompt-tokens-details", action=argparse.BooleanOptionalAction, default=True)
    add("--enable-scale-out", action=argparse.BooleanOptionalAction, default=False)
    add("--kv-transfer-config", type=_json_object)
    add("--weight-transfer-config", type=_json_object)
    add("--kv-events-config", type=_json_object)
    add("--seed", type=int, default=0)
    add("--shutdown-timeout", type=_seconds, default=0.0)
    return parser


def _engine(flags: argparse.Namespace, speed: ParallelismProfile) -> EngineConfig:
    """Read the engine's sizes. Raises ValueError if they do not fit each other."""
    blocks = flags.num_gpu_blocks_override or speed.kv_capacity_blocks(flags.block_size)
    usable = (blocks - 1) * flags.block_size
    sequences = flags.max_num_seqs or min(_MOST_SEQUENCES, flags.max_num_batched_tokens)
    if sequences > flags.max_num_batched_tokens:
        raise ValueError(
            f"--max-num-batched-tokens {flags.max_num_batched_tokens} must be at least"
            f" --max-num-seqs {sequences}: every running sequence needs a token a step"
        )
    transfer: dict[str, Any] = flags.kv_transfer_config or {}
    failure = transfer.get("kv_load_failure_policy", "fail")
    if failure not in ("fail", "recompute"):
        raise ValueError(f"kv_load_failure_policy must be fail or recompute, not {failure!r}")
    lease = transfer.get("kv_connector_extra_config", {}).get("kv_lease_duration", 30)
    if not isinstance(lease, int | float):
        raise ValueError(f"kv_lease_duration must be a number of seconds, not {lease!r}")
    return EngineConfig(
        num_blocks=blocks,
        block_size=flags.block_size,
        max_model_len=flags.max_model_len or max(min(_MODEL_CONTEXT, usable), 1),
        max_num_seqs=sequences,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        enable_prefix_caching=flags.enable_prefix_caching,
        kv_lease_seconds=lease,
        kv_load_failure=failure,
    )


def _kv_events(config: dict[str, Any] | None) -> KvEventsSettings | None:
    """Read --kv-events-config; None where nothing is published. Raises SettingsError."""
    if config is None or not config.get("enable_kv_cache_events") or config.get("publisher") == "null":
        return None
    names = {field.name for field in fields(KvEventsSettings)}
    made = KvEventsSettings(**{name: value for name, value in config.items() if name in names})
    texts = (made.endpoint, made.topic, made.replay_endpoint or "")
    if not all(isinstance(text, str) for text in texts) or type(made.buffer_steps) is not int:
        raise SettingsError("--kv-events-config: endpoints and topic must be texts, buffer_steps a number")
    return made


def _profile(name: str) -> PerformanceProfile:
    """Load a built-in profile by name, or a file by path. Raises SettingsError."""
    try:
        if name.endswith((".yaml", ".yml")) or "/" in name:
            return parse_profile(Path(name).read_text(encoding="utf-8"))
        return load_builtin(name)
    except (ProfileError, OSError) as error:
        raise SettingsError(f"EMULATOR_PROFILE: {error}") from error


def _dashed(word: str) -> str:
    """Write a flag's name with dashes; vLLM takes underscores too."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a port, 0 to 65535, not {text!r}")
    return int(text)


def _length(text: str) -> int | None:
    """Tokens as vLLM writes them: 32768, 32k (thousands), 32K (1024s), auto or -1 (the most that fits)."""
    if text in ("auto", "-1"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text)
    units = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
    tokens = int(float(match[1]) * units[match[2]]) if match else 0
    if tokens < 1:
        raise argparse.ArgumentTypeError(
            f"must be a number of tokens such as 32768 or 32K, or auto, not {text!r}"
        )
    return tokens


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds of at least 0, not {text!r}")
    return value


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"is not valid JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("kv_connector_extra_config", {}), dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text!r}")
    return value


def _positive(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SettingsError(f"{name} must be a positive number, not {text!r}")
    return value


def _integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise SettingsError(f"{name} must be a whole number, not {text!r}") from error
