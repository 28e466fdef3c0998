"""The engine model served over HTTP as vLLM serves: `python3 -m rolloutpool_sim.emulator MODEL [flags]`.

It takes `vllm serve`'s flags, and from the environment: EMULATOR_PROFILE (a built-in profile's name or a
file; sets speed and KV capacity), EMULATOR_TIME_SCALE (engine seconds per wall second), EMULATOR_SEED,
EMULATOR_OUTPUT_TOKENS (mean length of outputs that nothing cuts) and VLLM_NIXL_SIDE_CHANNEL_HOST (where
decode engines reach this one).

`settings`, `tokenizer`, `outputs` and `protocol` are pure, and so is a file for each API: `completions`,
`responses`, `messages` and `tokens` say how its requests are read and its answers written (`forms`).
`generate` alone runs the sequences, for all of them; `driver` steps the engine on the wall clock; `app`,
`tokenization`, `transfer` and `server` are the HTTP shell around it. What an engine decides must not be
decided here: that belongs in `rolloutpool_sim.engine`, where the simulator has it too.
"""
