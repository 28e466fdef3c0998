# mypy: disable-error-code="import-not-found"
"""Writes a model to a folder: a Llama of two layers with random weights, and a tokenizer of 512 tokens.

Runs inside the environment that `install` makes. The tokenizer knows every byte, so any text can be asked. In
its chat template a conversation's next prompt begins with all of its last one, as prefix caching needs.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEXT = "the quick brown fox jumps over the lazy dog. solve the problem step by step and call the tool."


def write_tokenizer(folder: str) -> None:
    """A byte-level tokenizer that merges what `TEXT` has often."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([TEXT] * 50, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def model(seed: int) -> LlamaForCausalLM:
    """0.9 MB of weights, always the same of one seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=16384,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    write_tokenizer(sys.argv[1])
    model(seed=0).save_pretrained(sys.argv[1])
