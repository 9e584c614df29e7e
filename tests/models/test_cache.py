"""The store: whatever enters, ends, moves or grows, a row sees its prompt and its own tokens, and nothing else."""

import pytest
import torch

from posttrain.models.attend import Options
from posttrain.models.cache import Prefix, Store, length_class

HEADS, KV_HEADS, DIM = 4, 2, 8
PLAIN = Options(scaling=0.4)


class Twin:
    """Rows as plain lists of queries, keys and values, beside the store: attention by definition, in float64."""

    def __init__(self, options=PLAIN):
        self.store = Store()
        self.options = options
        self.generator = torch.Generator().manual_seed(0)
        self.prompts = {}
        self.rows = {}

    def random(self, count):
        return [
            torch.randn(count, heads, DIM, generator=self.generator, dtype=torch.float64)
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        ]

    def expected(self, query, keys, values):
        """Attention of the last place over all places of its row."""
        place = len(keys) - 1
        first = 0 if self.options.window is None else max(0, place - self.options.window + 1)
        keys, values = (x[first:].repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values))
        scores = torch.einsum("hd,phd->hp", query, keys) * self.options.scaling
        return torch.einsum("hp,phd->hd", torch.softmax(scores, -1), values)

    def add_prompts(self, lengths):
        prefixes = [Prefix(ids=tuple(range(length))) for length in sorted(lengths)]
        self.store.place_prefixes(prefixes)
        query, key, value = self.random(sum(lengths))
        out = self.store.attend_prompts(0, query, key, value, self.options)
        start = 0
        for prefix in prefixes:
            stop = start + len(prefix.ids)
            self.prompts[prefix] = (key[start:stop], value[start:stop])
            for place in range(start, stop):
                expected = self.expected(query[place], key[start : place + 1], value[start : place + 1])
                assert torch.allclose(expected, out[place], rtol=0, atol=1e-9)
            start = stop
        return prefixes

    def enter(self, prefix):
        slot = self.store.add_row(prefix)
        self.rows[slot] = self.prompts[prefix]
        return slot

    def end(self, slot):
        self.store.retire(slot)
        del self.rows[slot]

    def compact(self):
        self.rows = {new: self.rows[old] for new, old in enumerate(self.store.compact())}

    def step(self, times=1):
        for _ in range(times):
            query, key, value = self.random(len(self.store.slots))
            self.store.begin_step(4)
            out = self.store.attend_rows(0, query, key, value, self.options)
            self.store.end_step()
            for slot, (keys, values) in self.rows.items():
                keys, values = torch.cat([keys, key[slot, None]]), torch.cat([values, value[slot, None]])
                self.rows[slot] = (keys, values)
                assert torch.allclose(self.expected(query[slot], keys, values), out[slot], rtol=0, atol=1e-9)


@pytest.mark.parametrize("lengths", [[5], [5, 5, 5], [3, 5, 9], [1, 30, 70, 70]])
def test_packed_prompts_do_not_see_each_other(lengths):
    assert len(lengths) == len(Twin().add_prompts(lengths))


@pytest.mark.parametrize("counts", [[1], [4], [3, 3], [1, 3], [2, 1, 4]])
@pytest.mark.parametrize("same_length", [True, False])
def test_rows_see_their_groups_prompt_and_their_own_tokens(counts, same_length):
    twin = Twin()
    prefixes = twin.add_prompts([6 if same_length else 4 + 9 * index for index in range(len(counts))])
    for prefix, count in zip(prefixes, counts, strict=True):
        for _ in range(count):
            twin.enter(prefix)
    twin.step(6)


def test_rows_may_enter_in_any_order_of_groups():
    twin = Twin()
    first, second = twin.add_prompts([5, 7])
    for prefix in (second, first, second, first):
        twin.enter(prefix)
    twin.step(3)


def test_a_row_that_enters_later_does_not_see_earlier_columns():
    twin = Twin()
    (prefix,) = twin.add_prompts([5])
    twin.enter(prefix)
    twin.step(3)
    twin.enter(prefix)
    twin.step(3)


def test_an_ended_row_does_not_disturb_the_others():
    twin = Twin()
    (prefix,) = twin.add_prompts([5])
    for _ in range(3):
        twin.enter(prefix)
    twin.step(2)
    twin.end(1)
    twin.step(3)


def test_a_dead_slot_is_reused():
    twin = Twin()
    (prefix,) = twin.add_prompts([5])
    for _ in range(3):
        twin.enter(prefix)
    twin.step(2)
    twin.end(1)
    assert 1 == twin.enter(prefix)
    twin.step(3)


def test_compaction_keeps_every_live_row_and_its_order():
    twin = Twin()
    first, second = twin.add_prompts([5, 20])
    for prefix in (first, second, first, second, first):
        twin.enter(prefix)
    twin.step(3)
    twin.end(0)
    twin.end(3)
    assert [1, 2, 4] == twin.store.compact()
    twin.rows = {new: twin.rows[old] for new, old in enumerate([1, 2, 4])}
    twin.step(3)


def test_a_row_that_was_never_decoded_survives_compaction():
    twin = Twin()
    (prefix,) = twin.add_prompts([5])
    for _ in range(2):
        twin.enter(prefix)
    twin.step()
    twin.enter(prefix)
    twin.end(0)
    twin.compact()
    twin.step(2)


def test_the_store_grows_without_losing_anything():
    twin = Twin()
    (prefix,) = twin.add_prompts([5])
    twin.enter(prefix)
    twin.enter(prefix)
    twin.step(40)


def test_old_columns_are_given_up_when_their_rows_are_gone():
    twin = Twin()
    (prefix,) = twin.add_prompts([5])
    slot = twin.enter(prefix)
    for _ in range(12):
        twin.step(3)
        following = twin.enter(prefix)
        twin.end(slot)
        slot = following
        twin.step(2)
    keys, _ = twin.store._own[0]
    assert keys.shape[2] <= 16


def test_new_prompts_may_come_while_rows_are_decoded():
    twin = Twin()
    (first,) = twin.add_prompts([5])
    twin.enter(first)
    twin.step(2)
    second, third = twin.add_prompts([6, 40])
    twin.enter(second)
    twin.enter(third)
    twin.step(3)


def test_a_released_prompt_makes_room_for_the_next():
    twin = Twin()
    first, second = twin.add_prompts([5, 6])
    slot = twin.enter(first)
    twin.enter(second)
    twin.step(2)
    twin.end(slot)
    twin.store.release(first)
    (third,) = twin.add_prompts([9])
    assert first.place == third.place
    twin.enter(third)
    twin.step(3)


def test_a_prompt_held_without_rows_does_not_disturb():
    twin = Twin()
    held, used, longer = twin.add_prompts([5, 6, 30])
    twin.enter(used)
    twin.step(2)
    twin.enter(longer)
    twin.step(2)
    twin.enter(held)
    twin.step(2)


@pytest.mark.parametrize("window", [1, 2, 4, 7, 12, 50])
def test_a_sliding_window_hides_prompt_and_own_tokens_behind_it(window):
    twin = Twin(Options(scaling=0.4, window=window))
    first, second = twin.add_prompts([3, 8])
    twin.enter(first)
    twin.enter(second)
    twin.step(3)
    twin.enter(second)
    twin.step(8)


def test_the_prompt_is_stored_once_for_the_whole_group():
    twin = Twin()
    (prefix,) = twin.add_prompts([100])
    for _ in range(8):
        twin.enter(prefix)
    twin.step(2)
    slab, _ = prefix.place
    assert (1, KV_HEADS, 128, DIM) == slab.layers[0][0].shape
    assert 8 == len(twin.store._own[0][0])
    assert twin.store._own[0][0].shape[2] < 100


def test_clear_frees_everything():
    twin = Twin()
    (prefix,) = twin.add_prompts([5])
    twin.enter(prefix)
    twin.step()
    twin.store.clear()
    assert ([], {}, {}) == (twin.store.slots, twin.store._own, twin.store._slabs)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(1, 16), (16, 16), (17, 24), (25, 32), (33, 48), (49, 64), (65, 96), (512, 512), (513, 768)],
)
def test_length_classes_waste_at_most_half(length, expected):
    assert expected == length_class(length)
