"""The teachers of a recipe: refused before a model is loaded, then loaded and proved to read the student's tokens.

A teacher scores the student's own token ids, so its numbers mean something only if both tokenizers and chat templates
are the same. That is compared by hash and by witness: the ids of probe strings and conversations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from posttrain.config import Recipe, Teacher
from posttrain.errors import ConfigError, ModelError
from posttrain.models.heads import TILE_BYTES
from posttrain.models.load import Loaded, load_model
from posttrain.models.locate import check_folder, looks_like_folder, resolve_model_path
from posttrain.models.teacher import Teachers, responsible
from posttrain.plugs import validated
from posttrain.protocols import Packer
from posttrain.tasks.chat import Chat
from posttrain.types import Message, Microbatch, Needs, Sample, Task

STRINGS = ("47+85=", "  two  blanks\n\n\tand a tab", "don't, naïve café", "数学 и 𝛑", "<think>x</think>", "x" * 40)
"""Texts whose ids both tokenizers must agree on."""
CONVERSATIONS: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "What is 2+2?"},),
    ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"}),
    (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>b</think>c"},
        {"role": "user", "content": "d"},
    ),
    ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "tool", "content": "c"}),
)
"""Conversations whose prompts both templates must render to the same ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taught:
    """What loading the teachers gave."""

    teachers: Teachers
    """The frozen models."""
    window: int
    """The most tokens a row may have that all of them read."""
    notes: tuple[str, ...]
    """What is worth saying."""


def sections(recipe: Recipe) -> tuple[Teacher, ...]:
    """The recipe's teachers, one or several; ConfigError if both ways to write them are used."""
    if recipe.teacher is not None and recipe.teachers:
        raise ConfigError("give either one [teacher] section or a list of [[teachers]], not both")
    return recipe.teachers if recipe.teacher is None else (recipe.teacher,)


def refuse_wrong_teachers(recipe: Recipe, needs: Needs, tasks: Sequence[Task]) -> None:
    """Raise before anything is loaded: a teacher nobody reads, none where one is needed, tasks without exactly one."""
    name, found = recipe.algorithm.type, sections(recipe)
    wanted = needs.teacher_logprobs or needs.divergence is not None
    if wanted and not found:
        raise ConfigError(f"algorithm '{name}' imitates a teacher and the recipe names none: add [teacher] with a path")
    if found and not wanted:
        raise ConfigError(f"algorithm '{name}' asks no teacher, so [teacher] would do nothing: remove it")
    names = [section.name for section in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"teachers need different names; got {names}")
    for section in found:
        if section.lora is not None:
            raise ConfigError(f"teacher '{section.name}' is frozen and trains no adapters: remove its lora section")
        if looks_like_folder(section.path) or Path(section.path).expanduser().exists():
            check_folder(resolve_model_path(section.path))
    if found:
        for task in tasks:
            responsible(found, task)


def load_teachers(recipe: Recipe, needs: Needs, student: Loaded, chat: Chat, *, temperature: float) -> Taught | None:
    """Load every teacher, or refuse with what differs from the student; None if the algorithm needs none."""
    found = sections(recipe)
    if not (needs.teacher_logprobs or needs.divergence is not None):
        return None
    loaded = [load_model(section, seed=recipe.run.seed) for section in found]
    notes = []
    for section, teacher in zip(found, loaded, strict=True):
        refuse_other_tokens(section, chat, Chat(teacher.tokenizer, eos_ids=teacher.generation_eos_ids))
        sizes = [_vocabulary(one) for one in (student, teacher)]
        if sizes[0] != sizes[1]:
            notes.append(
                f"teacher '{section.name}' has {sizes[1]} output rows, the student {sizes[0]}: rows beyond the smaller "
                "one, which no token uses, are left out of both distributions"
            )
    window = min([student.window, *(teacher.window for teacher in loaded)])
    if window < student.window:
        notes.append(f"window: {window} tokens, a teacher's, instead of the student's {student.window}")
    tile_bytes = getattr(validated("learners", recipe.learner), "tile_bytes", TILE_BYTES)
    teachers = Teachers(
        found,
        [one.model for one in loaded],
        temperature=temperature,
        tile_bytes=tile_bytes,
        digests=[one.revision_digest for one in loaded],
    )
    return Taught(teachers=teachers, window=window, notes=tuple(notes))


def _vocabulary(loaded: Loaded) -> int:
    model: Any = loaded.model
    return int(model.get_output_embeddings().weight.shape[0])


def sorted_by_teacher(pack: Packer, teachers: Teachers) -> Packer:
    """Pack each teacher's samples by themselves, so that a microbatch passes through one teacher only."""
    if len(teachers.sections) == 1:
        return pack

    def packed(samples: Sequence[Sample]) -> list[Microbatch]:
        return [microbatch for part in teachers.by_teacher(samples) for microbatch in pack(part)]

    return packed


def refuse_other_tokens(section: Teacher, student: Chat, teacher: Chat) -> None:
    """Raise ModelError if the teacher would read the student's ids as something else."""
    apart = differences(student, teacher)
    if apart:
        raise ModelError(
            f"teacher '{section.name}' ({section.path}) does not read the student's tokens: {'; '.join(apart)}. "
            "Choose a teacher of the student's family; if only the template differs, give the student's to the teacher "
            "with chat_template = FILE"
        )


def differences(student: Chat, teacher: Chat) -> list[str]:
    """What keeps two tokenizers and templates from being the same, one line each; empty if nothing does."""
    ours, theirs = (chat.tokenizer.get_vocab() for chat in (student, teacher))
    lines = []
    if _hash(ours) != _hash(theirs):
        other = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        lines.append(f"{len(other)} vocabulary entries differ, for example {other[0]!r}")
    lines += _apart(
        "text", STRINGS, lambda chat, text: chat.tokenizer.encode(text, add_special_tokens=False), student, teacher
    )
    if student.template_hash != teacher.template_hash:
        lines.append("the chat templates or their special tokens differ")
    lines += _apart("conversation", CONVERSATIONS, _prompt, student, teacher)
    if student.end_of_turn_id != teacher.end_of_turn_id:
        lines.append(f"a turn ends with id {student.end_of_turn_id} and {teacher.end_of_turn_id}")
    return lines


def _apart(
    what: str, probes: Sequence[Any], ids: Callable[[Chat, Any], Any], student: Chat, teacher: Chat
) -> list[str]:
    first = next((probe for probe in probes if ids(student, probe) != ids(teacher, probe)), None)
    return [] if first is None else [f"other ids for the {what} {first!r}"]


def _prompt(chat: Chat, messages: Sequence[Message]) -> tuple[int, ...] | None:
    """The prompt's ids; None where the template refuses the conversation."""
    try:
        return chat.prompt_ids(messages)
    except ModelError:
        return None


def _hash(vocabulary: dict[str, int]) -> str:
    return sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()
