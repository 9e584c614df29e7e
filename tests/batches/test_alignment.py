"""Where a student's and a teacher's tokens of one text meet, on the toy's characters and on bytes with merges."""

import math
from dataclasses import replace

import numpy as np
import pytest

from posttrain.batches.alignment import Alignment, pieces
from posttrain.errors import DataError
from posttrain.models.tiny import build_tokenizer
from posttrain.tasks.chat import Chat
from posttrain.types import Ending, Sample, Task
from tests.foreign_tokens import build_byte_tokenizer

TOY, BYTES = Chat(build_tokenizer()), Chat(build_byte_tokenizer())
MESSAGES = ({"role": "user", "content": "say"},)


def sampled(chat, text, *, closed=True, ids=None):
    """A row in which the student answered ``text``."""
    prompt = chat.prompt_ids(MESSAGES)
    answer = tuple(chat.tokenizer.encode(text, add_special_tokens=False)) if ids is None else tuple(ids)
    row = np.array([*prompt, *answer, *([chat.end_of_turn_id] if closed else [])])
    mask = np.arange(len(row)) >= len(prompt)
    return Sample(
        ids=row,
        loss_mask=mask,
        prompt_length=len(prompt),
        group=3,
        rollout=1,
        advantages=np.zeros(len(row)),
        rollout_logprobs=np.full(len(row), np.nan),
        versions=np.where(mask, 0, -1),
        turns=np.where(mask, 0, -1),
        ending=Ending.STOP if closed else Ending.LENGTH,
        task=Task(id="t", messages=MESSAGES),
    )


def align(student, teacher, window=100):
    return Alignment(student=student, teacher=teacher, window=window)


def met(student, teacher, text, **options):
    """The spans of an answer, as (student's, teacher's) indices in the answers; None without any."""
    sample = sampled(student, text, **options)
    asked = align(student, teacher).ask(sample)
    if asked is None:
        return None
    mine, theirs = sample.prompt_length, asked.row.prompt_length
    return [(tuple(i - mine for i in own), tuple(i - theirs for i in other)) for own, other in asked.spans]


def ids_of(chat, *tokens):
    return chat.tokenizer.convert_tokens_to_ids(list(tokens))


class TestPieces:
    def test_characters_end_one_by_one(self):
        found = pieces(TOY, TOY.prompt_ids(MESSAGES), TOY.tokenizer.encode("a b"))
        assert ("a b", (1, 2, 3)) == (found.text, found.ends)

    def test_bytes_of_one_character_are_one_piece(self):
        found = pieces(BYTES, BYTES.prompt_ids(MESSAGES), BYTES.tokenizer.encode("xé𝛑y"))
        assert ("xé𝛑y", (1, 2, 3, 4)) == (found.text, found.ends)
        assert ((0,), (1, 2), (3, 4, 5, 6), (7,)) == found.tokens

    def test_a_special_token_ends_the_text(self):
        found = pieces(TOY, (), [*TOY.tokenizer.encode("ab"), *ids_of(TOY, "<|pad|>", "c")])
        assert "ab" == found.text

    def test_bytes_that_are_no_character_end_the_text(self):
        broken = BYTES.tokenizer.encode("é")[:1]
        found = pieces(BYTES, (), [*BYTES.tokenizer.encode("x"), *broken, *BYTES.tokenizer.encode("y")])
        assert ("x", ((0,),)) == (found.text, found.tokens)

    def test_a_run_of_broken_bytes_is_given_up(self):
        broken = BYTES.tokenizer.encode("é")[1:]
        assert "" == pieces(BYTES, (), broken * 50).text


class TestSpans:
    def test_a_teachers_merge_takes_several_of_the_students_tokens(self):
        expected = [((0,), (0,)), ((1, 2, 3, 4), (1,)), ((5,), (2,)), ((6,), (3,))]
        assert expected == met(TOY, BYTES, "xabcdy")

    def test_a_students_merge_takes_several_of_the_teachers_tokens(self):
        assert [((0,), (0, 1, 2, 3)), ((1,), (4,)), ((2,), (5,))] == met(BYTES, TOY, "abcdy")

    def test_merges_that_cross_are_one_span(self):
        one, two = ids_of(BYTES, "=", "12")
        assert [((0, 1), (0, 1)), ((2,), (2,))] == met(BYTES, BYTES, "=12", ids=(one, two))

    def test_the_teachers_row_is_its_own_prompt_text_and_end(self):
        row = align(TOY, BYTES).ask(sampled(TOY, "xab")).row
        assert "<turn>user: say<done><turn>assistant: xab<done>" == BYTES.decode(row.ids, skip_special=False)
        assert "xab<done>" == BYTES.decode(row.ids[row.loss_mask], skip_special=False)

    def test_an_empty_answer_meets_at_its_end(self):
        assert [((0,), (0,))] == met(TOY, BYTES, "")

    def test_a_cut_off_text_loses_its_last_span_and_has_no_end(self):
        assert [((0,), (0,))] == met(TOY, BYTES, "xab", closed=False)

    def test_nothing_behind_a_special_token_meets(self):
        ids = [*ids_of(TOY, "x", "y"), *ids_of(TOY, "<|pad|>", "z")]
        assert [((0,), (0,))] == met(TOY, BYTES, "", ids=ids)

    def test_nothing_behind_an_unknown_character_meets(self):
        assert [((0,), (0,))] == met(BYTES, TOY, "xéy")

    def test_a_text_that_reads_as_the_teachers_end_of_turn_does_not_pass_for_it(self):
        assert [((0,), (0,))] == met(TOY, BYTES, "x<done>y")

    def test_a_row_beyond_the_teachers_window_meets_nowhere(self):
        assert None is align(BYTES, TOY, window=5).ask(sampled(BYTES, "abcd"))

    def test_the_same_tokenizer_meets_at_every_token_with_the_students_own_row(self):
        sample = sampled(TOY, "assistant 12+3=15\n")
        asked = align(TOY, TOY).ask(sample)
        assert sample.ids.tolist() == asked.row.ids.tolist()
        assert sample.loss_mask.tolist() == asked.row.loss_mask.tolist()
        assert [((i,), (i,)) for i in np.flatnonzero(sample.loss_mask)] == list(asked.spans)


class TestTaught:
    def rows(self, spread):
        sample = sampled(TOY, "xab")
        asked = align(TOY, BYTES).ask(sample)
        own, theirs = np.full(len(sample), np.nan), np.full(len(asked.row), np.nan)
        own[sample.loss_mask], theirs[asked.row.loss_mask] = [-1.0, -2.0, -3.0, -0.5], [-1.5, -4.0, -0.25]
        return asked.taught(own, theirs, spread=spread)[sample.loss_mask].tolist()

    def test_each_token_of_a_span_is_given_its_difference(self):
        assert [-1.5, -1.0, -2.0, -0.25] == self.rows("broadcast")

    def test_a_divided_difference_sums_to_the_spans(self):
        assert [-1.5, -1.5, -2.5, -0.25] == self.rows("divide")

    def test_tokens_in_no_span_are_unknown(self):
        sample = sampled(TOY, "xab", closed=False)
        asked = align(TOY, BYTES).ask(sample)
        taught = asked.taught(np.full(len(sample), -1.0), np.full(len(asked.row), -2.0))
        assert [False, True, True] == [math.isnan(one) for one in taught[sample.loss_mask]]

    def test_the_same_tokens_are_given_the_teachers_numbers_bit_for_bit(self):
        sample = sampled(TOY, "12+3=15")
        own, theirs = -np.random.default_rng(0).random((2, len(sample)))
        taught = align(TOY, TOY).ask(sample).taught(own, theirs)
        assert theirs[sample.loss_mask].tolist() == taught[sample.loss_mask].tolist()


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda s: replace(s, turns=s.turns + 1), "has several turns"),
            (lambda s: replace(s, images={"pixels": 1}), "has images"),
            (lambda s: replace(s, task=None), "has no task"),
        ],
    )
    def test_what_is_no_single_text_answer_is_refused(self, change, message):
        with pytest.raises(DataError, match=f"group 3 rollout 1 {message}: with cross_tokenizer"):
            align(TOY, BYTES).ask(change(sampled(TOY, "x")))
