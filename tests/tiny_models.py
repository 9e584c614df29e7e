"""Random models of a few thousand parameters from real transformers configs, for tests."""

import torch
import transformers

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}
FAMILIES = {
    "qwen3": transformers.Qwen3Config,
    "qwen2": transformers.Qwen2Config,
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "gemma2": transformers.Gemma2Config,
    "gemma3": transformers.Gemma3TextConfig,
    "phi3": transformers.Phi3Config,
    "olmo2": transformers.Olmo2Config,
    "smollm3": transformers.SmolLM3Config,
    "granite": transformers.GraniteConfig,
}


def build_tiny(family: str = "qwen3", *, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides):
    """Return a random causal language model of the family in evaluation mode."""
    torch.manual_seed(seed)
    config = FAMILIES[family](**(SIZES | overrides))
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
