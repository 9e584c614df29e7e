"""A random vision-language model of a few thousand parameters and rows with a picture, for tests."""

import numpy as np
import torch
import transformers

from posttrain.types import Sample

IMAGE_TOKEN, IMAGE_TOKENS = 60, 4
VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
    "projection_dim": 16,
}
TEXT = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build_vision(*, seed=0, dtype=torch.float32, vocabulary=61, image_token=IMAGE_TOKEN):
    """Return a random Llava in evaluation mode; a picture of 8 x 8 takes four tokens."""
    torch.manual_seed(seed)
    config = transformers.LlavaConfig(
        vision_config=dict(VISION),
        text_config=TEXT | {"vocab_size": vocabulary},
        image_token_index=image_token,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    return transformers.LlavaForConditionalGeneration(config).to(dtype).eval()


def picture(seed=0, dtype=torch.float32):
    """Pixels of one picture as a processor returns them, [1, 3, 8, 8]."""
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def seen(prompt, answer, *, group=0, rollout=0, reward=float("nan"), advantage=1.0, images=None):
    """A row: a picture, then the prompt, then the answer, which trains; without ``images`` a row of text."""
    lead = [1, *[IMAGE_TOKEN] * (IMAGE_TOKENS if images else 0), *prompt]
    size = len(lead) + len(answer)
    mask = np.arange(size) >= len(lead)
    return Sample(
        ids=np.array([*lead, *answer]),
        loss_mask=mask,
        prompt_length=len(lead),
        group=group,
        rollout=rollout,
        reward=reward,
        advantages=np.where(mask, advantage, np.nan),
        rollout_logprobs=np.full(size, np.nan),
        versions=np.full(size, -1),
        turns=np.full(size, -1),
        images=images or {},
    )
