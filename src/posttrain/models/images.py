"""Carries what a processor made of images through a microbatch, and spoils images for mDPO.

A row's ``images`` are arrays by the model's argument name. Arrays with one entry per token of the row (token types)
are padded like the row; all others (pixel_values, image_sizes, image_grid_thw, ...) are joined along their first axis
in row order, as processors do. Image rows are laid out padded only: models place image features by counting image
tokens, and some give these positions of their own, which packed and shared rows would break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from posttrain.errors import DataError
from posttrain.models.layout import computed_length
from posttrain.types import Layout, Microbatch, Sample

PIXELS = "pixel_values"
"""The model's argument that holds pictures."""


def refuse_images(samples: Sequence[Sample], layout: Layout) -> None:
    """Raise DataError for rows with images in a layout other than padded."""
    if layout != "padded" and any(sample.images for sample in samples):
        raise DataError(
            f"rows with images cannot be laid out '{layout}': the model finds image features by counting tokens from "
            "the start of a row. Use batches.layout = 'auto' or 'padded'"
        )


def image_tensors(microbatch: Microbatch, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Return the model's image arguments for the rows that are computed; empty for text.

    Raises DataError for another layout than padded, for rows of which only some have images, and for shapes that
    cannot be joined.
    """
    refuse_images(microbatch.samples, microbatch.layout)
    rows = [sample for sample in microbatch.samples if computed_length(sample)]
    if not any(sample.images for sample in rows):
        return {}
    names = list(dict.fromkeys(name for sample in rows for name in sample.images))
    width = microbatch.ids.shape[1]
    return {name: _join(name, rows, width).to(device) for name in names}


def cropped(images: Mapping[str, Any], shares: tuple[float, float], rng: np.random.Generator) -> dict[str, Any]:
    """Return the images with every picture replaced by a random crop of it, scaled back to its size.

    ``shares`` bound the crop's share of the area (mDPO: 0.01 to 0.2). All other arrays stay, so the row keeps its
    number of image tokens. Raises DataError where the pictures are not arrays [..., height, width] (flattened patches).
    """
    pixels = torch.as_tensor(images.get(PIXELS, np.zeros(0)))
    if pixels.ndim < 4:
        raise DataError(
            f"cannot crop {PIXELS} of shape {tuple(pixels.shape)}: expected pictures [..., channels, height, width]"
        )
    pictures = pixels.reshape(-1, *pixels.shape[-3:])
    spoiled = torch.stack([_crop(picture, float(rng.uniform(*shares)), rng) for picture in pictures])
    return {**images, PIXELS: spoiled.reshape(pixels.shape)}


def _crop(picture: torch.Tensor, share: float, rng: np.random.Generator) -> torch.Tensor:
    height, width = picture.shape[-2:]
    tall, wide = (max(1, round(side * share**0.5)) for side in (height, width))
    top, left = int(rng.integers(height - tall + 1)), int(rng.integers(width - wide + 1))
    part = picture[None, :, top : top + tall, left : left + wide]
    scaled = torch.nn.functional.interpolate(part.double(), size=(height, width), mode="bilinear", align_corners=False)
    return scaled[0].to(picture.dtype)


def _join(name: str, rows: Sequence[Sample], width: int) -> torch.Tensor:
    missing = [sample.group for sample in rows if name not in sample.images]
    arrays = [torch.as_tensor(sample.images[name]) for sample in rows if name in sample.images]
    if all(len(array) == len(sample) and array.ndim == 1 for array, sample in zip(arrays, rows, strict=False)):
        if missing:
            raise DataError(f"groups {missing[:3]} have no {name}, and rows beside them have")
        ends = [computed_length(sample) for sample in rows]
        cut = [array[:end] for array, end in zip(arrays, ends, strict=True)]
        return torch.stack([torch.nn.functional.pad(array, (0, width - len(array))) for array in cut])
    if any(array.ndim == 1 for array in arrays):
        raise DataError(f"{name} has one axis, so it must have one entry per token of its row; it has another length")
    if len({tuple(array.shape[1:]) for array in arrays}) > 1:
        shapes = [tuple(array.shape) for array in arrays[:3]]
        raise DataError(f"{name} of these rows cannot be joined: shapes {shapes}. Scale the images to one size")
    return torch.cat(arrays)
