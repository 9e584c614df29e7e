"""The offline toy: a Qwen3 model of about two million parameters and a character tokenizer, built on the spot.

Nothing is downloaded. The architecture is transformers' own Qwen3, so whatever trains the toy trains the real one;
two wide blocks instead of many narrow ones make each sampled token cheap.
The chat template writes each message as ``<|im_start|>role content<|im_end|>`` without separators, so that the
prompt ``47+85=`` costs eleven tokens, and a longer conversation always begins with the tokens of the shorter one.
"""

from __future__ import annotations

import string
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

__all__ = ["CHAT_TEMPLATE", "build_tokenizer", "build_toy"]

PAD, UNKNOWN, START, END = "<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"
SPREAD = 0.05
"""Standard deviation of the first weights: at this width it learns addition in fewer steps than the usual 0.02."""
ROLES = ("system", "user", "assistant", "tool")
CHARACTERS = string.digits + string.ascii_letters + " \n" + string.punctuation

CHAT_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}\
{{ '<|im_end|>' }}{% endif %}\
{%- for message in messages %}{{ '<|im_start|>' + message.role + (message.content or '') }}\
{%- for call in message.tool_calls or [] %}{% set call = call.function or call %}\
{{ '<tool_call>' + {'name': call.name, 'arguments': call.arguments} | tojson + '</tool_call>' }}{% endfor %}\
{{ '<|im_end|>' }}{% endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"""
"""ChatML without line breaks and without ``{% generation %}`` marks."""


def build_toy(
    *,
    seed: int,
    hidden: int = 256,
    intermediate: int = 1024,
    layers: int = 2,
    heads: int = 8,
    kv_heads: int = 2,
    window: int = 1024,
    dtype: torch.dtype = torch.float32,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return a random model, in evaluation mode, and its tokenizer; the same seed gives the same weights.

    Args:
        seed: seed of the initial weights; torch's own generator is left as it was.
        hidden: width of the residual stream, a multiple of ``heads``.
        intermediate: width inside the MLP.
        layers: number of blocks.
        heads: number of attention heads.
        kv_heads: number of key-value heads, a divisor of ``heads``.
        window: the most tokens a row may have.
        dtype: number type of the weights.
    """
    tokenizer = build_tokenizer(window)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=window,
        initializer_range=SPREAD,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Qwen3ForCausalLM(config)
    return model.to(dtype).eval(), tokenizer


def build_tokenizer(window: int = 1024) -> PreTrainedTokenizerFast:
    """Return the character tokenizer: printable ASCII and newline, four role words, four special tokens."""
    special = (PAD, UNKNOWN, START, END)
    vocabulary = {token: index for index, token in enumerate((*special, *ROLES, *CHARACTERS))}
    core = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False))
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    core.add_tokens([AddedToken(role, special=False, normalized=False) for role in ROLES])
    options: dict[str, Any] = {"pad_token": PAD, "unk_token": UNKNOWN, "eos_token": END, "model_max_length": window}
    make: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = make(tokenizer_object=core, clean_up_tokenization_spaces=False, **options)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
