"""The emulator's command line and environment."""

from pathlib import Path

import pytest

from rolloutpool_sim.emulator.server import main
from rolloutpool_sim.emulator.settings import Settings, SettingsError, parse_settings
from rolloutpool_sim.profile import load_builtin

NIXL = '{"kv_connector":"NixlConnector","kv_connector_extra_config":{"kv_lease_duration":12}}'


def _parse(line: str, **environment: str) -> Settings:
    return parse_settings(line.split(), environment)


def test_defaults_are_those_of_vllm_on_one_gpu() -> None:
    settings = _parse("meta/llama-8b")
    assert (settings.model, settings.served_names) == ("meta/llama-8b", ("meta/llama-8b",))
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    engine = settings.engine
    assert (engine.num_blocks, engine.block_size, engine.max_model_len) == (27125, 16, 131072)
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (1024, 8192)
    assert (engine.kv_lease_seconds, engine.kv_load_failure) == (30, "fail")
    assert settings.speed == load_builtin("emulated-8b-h100").at(1)
    assert (settings.time_scale, settings.seed, settings.shutdown_timeout) == (1.0, 0, 0.0)
    assert (settings.kv_transfer, settings.side_channel_host) == (False, "localhost")
    assert settings.ignored_flags == ()


def test_flags_of_a_real_engine() -> None:
    settings = _parse(
        "serve m --served-model-name a b --port=8200 --tensor-parallel-size=2 --block-size=128"
        " --max_model_len 32K"
        " --max-num-seqs 64 --max-num-batched-tokens 2048 --num-gpu-blocks-override 300 --seed 7"
        f" --shutdown-timeout=60 --kv-transfer-config {NIXL} --no-disable-hybrid-kv-cache-manager"
        " --disable-access-log-for-endpoints=/health --gpu-memory-utilization 0.9 --no-enable-prefix-caching",
        EMULATOR_TIME_SCALE="10",
        VLLM_NIXL_SIDE_CHANNEL_HOST="10.0.0.7",
    )
    assert settings.served_names == ("a", "b")
    assert (settings.port, settings.tensor_parallel) == (8200, 2)
    engine = settings.engine
    assert (engine.num_blocks, engine.block_size, engine.max_model_len) == (300, 128, 32768)
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (64, 2048)
    assert (engine.enable_prefix_caching, engine.kv_lease_seconds) == (False, 12)
    assert (settings.time_scale, settings.seed, settings.shutdown_timeout) == (10.0, 7, 60.0)
    assert (settings.kv_transfer, settings.side_channel_host) == (True, "10.0.0.7")
    assert settings.ignored_flags == (
        "--no-disable-hybrid-kv-cache-manager",
        "--disable-access-log-for-endpoints=/health",
        "--gpu-memory-utilization",
        "0.9",
    )


@pytest.mark.parametrize(
    ("line", "environment", "length"),
    [
        pytest.param("m --num-gpu-blocks-override 101", {}, 1600, id="the most that fits"),
        pytest.param("m --max-model-len auto", {}, 131072, id="auto"),
        pytest.param("m --max-model-len -1", {}, 131072, id="minus one"),
        pytest.param("m --max-model-len 4096", {}, 4096, id="a number"),
        pytest.param("m --max-model-len 4k", {}, 4000, id="thousands"),
        pytest.param("m -tp 2", {"EMULATOR_PROFILE": "emulated-32b-h100"}, 131072, id="another profile"),
    ],
)
def test_model_length(line: str, environment: dict[str, str], length: int) -> None:
    assert _parse(line, **environment).engine.max_model_len == length


def test_a_small_token_budget_bounds_the_batch() -> None:
    assert _parse("m --max-num-batched-tokens 64").engine.max_num_seqs == 64


def test_the_environment_wins_over_the_seed_flag_and_model_may_be_a_flag() -> None:
    assert _parse("--model m --seed 3", EMULATOR_SEED="4").seed == 4
    assert _parse("--model m").model == "m"
    assert _parse("m", EMULATOR_OUTPUT_TOKENS="40").mean_output_tokens == 40.0


def test_a_profile_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    profile = load_builtin("emulated-8b-h100").model_copy(update={"name": "mine"})
    path.write_text(profile.model_dump_json(by_alias=True))
    assert _parse("m", EMULATOR_PROFILE=str(path)).profile.name == "mine"


@pytest.mark.parametrize(
    ("line", "environment", "message"),
    [
        pytest.param("", {}, "no model given", id="no model"),
        pytest.param("m --port x", {}, "--port: must be a port", id="port"),
        pytest.param("m --port 70000", {}, "--port: must be a port", id="port too high"),
        pytest.param(
            "m --block-size 0", {}, "--block-size: must be a whole number of at least 1", id="count"
        ),
        pytest.param(
            "m --max-model-len long", {}, "--max-model-len: must be a number of tokens", id="length"
        ),
        pytest.param("m --shutdown-timeout -5", {}, "shutdown-timeout", id="timeout"),
        pytest.param("m --seed x", {}, "--seed: invalid int value", id="seed"),
        pytest.param("m --kv-transfer-config {", {}, "is not valid JSON", id="JSON"),
        pytest.param("m --kv-transfer-config []", {}, "must be a JSON object", id="JSON object"),
        pytest.param(
            'm --kv-transfer-config {"kv_load_failure_policy":"hope"}',
            {},
            "must be fail or recompute",
            id="policy",
        ),
        pytest.param(
            'm --kv-transfer-config {"kv_connector_extra_config":{"kv_lease_duration":"x"}}',
            {},
            "kv_lease_duration must be a number",
            id="lease",
        ),
        pytest.param(
            "m --max-num-seqs 64 --max-num-batched-tokens 32",
            {},
            "must be at least --max-num-seqs 64",
            id="batch",
        ),
        pytest.param("m -tp 3", {}, "has no TP3 PP1; it has TP1 PP1", id="parallelism"),
        pytest.param(
            "m --num-gpu-blocks-override 10 --max-model-len 8192", {}, "does not fit", id="too small"
        ),
        pytest.param("m", {"EMULATOR_PROFILE": "h9000"}, "no built-in profile 'h9000'", id="profile"),
        pytest.param("m", {"EMULATOR_PROFILE": "/no/such.yaml"}, "EMULATOR_PROFILE", id="profile file"),
        pytest.param("m", {"EMULATOR_TIME_SCALE": "0"}, "EMULATOR_TIME_SCALE must be a positive", id="scale"),
        pytest.param("m", {"EMULATOR_TIME_SCALE": "fast"}, "EMULATOR_TIME_SCALE must be", id="scale word"),
        pytest.param("m", {"EMULATOR_SEED": "x"}, "EMULATOR_SEED must be a whole number", id="seed variable"),
    ],
)
def test_bad_settings_are_one_line_and_exit_code_2(
    line: str, environment: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingsError, match=message):
        _parse(line, **environment)
    assert main(line.split(), environment) == 2
    error = capsys.readouterr().err
    assert error.startswith("rolloutpool_sim.emulator: ")
    assert error.count("\n") == 1
