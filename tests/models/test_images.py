"""Images of a microbatch: joined in row order, padded where they follow tokens, refused where they cannot work."""

import numpy as np
import pytest
import torch

from posttrain.batches.pack import pack, pack_auto
from posttrain.errors import DataError
from posttrain.models.images import cropped, image_tensors
from posttrain.models.layout import place_padded
from posttrain.models.rows import tensors
from posttrain.models.scoring import Scorer
from posttrain.models.selftest import supported_layouts
from tests.tiny_vision import build_vision, picture, seen

RNG = np.random.default_rng(0)


def row(number, answer=(7, 2), **more):
    return seen([5], list(answer), group=number, images={"pixel_values": picture(number), **more})


def test_text_has_no_image_arguments():
    assert {} == image_tensors(place_padded([seen([5], [7, 2])]), "cpu")


def test_pictures_are_joined_in_row_order():
    found = image_tensors(place_padded([row(1), seen([5], [7]), row(2)]), "cpu")
    assert torch.equal(torch.cat([picture(1), picture(2)]), found["pixel_values"])


def test_rows_that_are_not_computed_bring_no_picture():
    still = seen([5], [], images={"pixel_values": picture(3)})
    assert 1 == len(image_tensors(place_padded([row(1), still]), "cpu")["pixel_values"])


def test_arrays_that_follow_the_tokens_are_padded_with_the_row():
    rows = [row(0, [7, 8, 2], token_type_ids=np.arange(9)), row(1, [2], token_type_ids=np.arange(7))]
    found = image_tensors(place_padded(rows), "cpu")["token_type_ids"]
    assert [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 0, 0]] == found.tolist()


def test_token_types_of_some_rows_only_are_refused():
    rows = [row(0, token_type_ids=np.arange(8)), seen([5], [7, 2], group=4)]
    with pytest.raises(DataError, match=r"groups \[4\] have no token_type_ids"):
        image_tensors(place_padded(rows), "cpu")


def test_token_types_of_another_length_are_refused():
    with pytest.raises(DataError, match="one entry per token"):
        image_tensors(place_padded([row(0, token_type_ids=np.arange(5))]), "cpu")


def test_pictures_of_two_sizes_are_refused():
    rows = [row(0), seen([5], [7], images={"pixel_values": torch.zeros(1, 3, 4, 4)})]
    with pytest.raises(DataError, match="cannot be joined"):
        image_tensors(place_padded(rows), "cpu")


@pytest.mark.parametrize("layout", ["packed", "shared"])
def test_image_rows_lie_padded_or_not_at_all(layout):
    with pytest.raises(DataError, match="cannot be laid out"):
        pack([row(0)], token_budget=100, layout=layout)


def test_the_cheapest_layout_of_image_rows_is_padded():
    rows = [row(0), row(0, [9, 9, 9, 2])]
    layouts = {m.layout for m in pack_auto(rows, token_budget=100, allowed={"padded", "packed", "shared"})}
    assert {"padded"} == layouts


def test_scores_are_those_of_the_models_own_forward():
    model = build_vision(dtype=torch.float64)
    support = supported_layouts(model)
    scorer = Scorer(model=model, head=support.head, implementation=support.implementation)
    samples = [
        seen([5], list(a), group=n, images={"pixel_values": picture(n, torch.float64)})
        for n, a in enumerate([(7, 2), (8, 9, 2)])
    ]
    found = scorer.score(tensors(place_padded(samples), "cpu"))[0]
    expected = []
    for sample in samples:
        ids = torch.as_tensor(sample.ids)[None]
        logits = model(input_ids=ids, pixel_values=sample.images["pixel_values"], use_cache=False).logits[0]
        places = np.flatnonzero(sample.loss_mask)
        expected.append(torch.log_softmax(logits, -1)[places - 1, ids[0, places]])
    assert torch.allclose(torch.cat(expected), found, atol=1e-9)


def test_a_whole_crop_is_the_picture_itself():
    images = {"pixel_values": picture(1), "image_sizes": np.array([[8, 8]])}
    found = cropped(images, (1.0, 1.0), RNG)
    assert torch.allclose(picture(1), found["pixel_values"], atol=1e-6)
    assert images["image_sizes"] is found["image_sizes"]


def test_a_tiny_crop_is_one_colour():
    found = cropped({"pixel_values": picture(1)}, (0.01, 0.01), RNG)["pixel_values"]
    assert torch.equal(found[..., :1, :1].expand_as(found), found)
    assert found[0, :, 0, 0].tolist() in picture(1)[0].flatten(1).T.tolist()


def test_several_pictures_of_a_row_are_each_cropped():
    images = {"pixel_values": torch.stack([picture(1)[0], picture(2)[0]])[None]}
    assert (1, 2, 3, 8, 8) == tuple(cropped(images, (0.1, 0.2), RNG)["pixel_values"].shape)


def test_flattened_patches_cannot_be_cropped():
    with pytest.raises(DataError, match="cannot crop"):
        cropped({"pixel_values": torch.zeros(16, 1176)}, (0.1, 0.2), RNG)
