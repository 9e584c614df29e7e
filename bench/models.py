"""Builds the two models of the benchmark from fixed seeds: a character model of 1 M and a 32k-vocabulary one of 9 M.

Qwen3 architecture, random weights, float32. The chat template writes the content and nothing else, so that both sides
read the same tokens. Tokenizer of the larger one: byte-level BPE over the sources of Python and transformers.
"""

from __future__ import annotations

import string
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SPECIALS = ["<pad>", "<bos>", "<eos>"]
SIZES: dict[str, dict[str, int]] = {
    "char1m": {"hidden": 128, "layers": 5, "heads": 4, "intermediate": 384},
    "bpe10m": {"hidden": 192, "layers": 8, "heads": 6, "intermediate": 512},
}
"""Sizes by name; two key-value heads of 32 numbers in both."""


def characters() -> Tokenizer:
    """One token per printable character."""
    printable = [c for c in string.printable if c not in "\r\x0b\x0c"]
    core = Tokenizer(models.WordLevel({t: i for i, t in enumerate([*SPECIALS, *printable])}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return core


def byte_pairs(vocabulary: int) -> Tokenizer:
    """Byte-level BPE trained on sources that every installation has."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(library.glob("*.py")) + sorted(library.glob("*/*.py"))
    files += sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py"))[:200]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator((file.read_text(encoding="utf-8", errors="ignore") for file in files), trainer)
    return core


def wrap(core: Tokenizer) -> PreTrainedTokenizerFast:
    """As transformers reads it."""
    make: Any = PreTrainedTokenizerFast
    names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIALS, strict=True))
    return make(tokenizer_object=core, padding_side="left", chat_template=PLAIN, **names)


def network(tokenizer: Any, *, hidden: int, layers: int, heads: int, intermediate: int, vocabulary: int) -> Any:
    """Random weights from seed 0."""
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=intermediate,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        rope_theta=10000.0,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config)


def build(folder: Path, name: str, vocabulary: int | None = None) -> Path:
    """Write the model where it is not there yet; return its folder. ``vocabulary`` overrides the head's width."""
    target = folder / (name if vocabulary is None else f"{name}-{vocabulary}")
    if (target / "config.json").exists():
        return target
    tokenizer = wrap(characters() if name == "char1m" else byte_pairs(32000))
    width = 104 if name == "char1m" else len(tokenizer)
    model = network(tokenizer, **SIZES[name], vocabulary=vocabulary or width)
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)
    return target


if __name__ == "__main__":
    for model_name in SIZES:
        print(build(Path(sys.argv[1]), model_name))
