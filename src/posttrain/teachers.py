"""The teachers of a recipe: refused before a model is loaded, then loaded and proved to read the student's tokens.

A teacher scores the student's own token ids, so its numbers mean something only if both tokenizers and chat templates
are the same. That is compared by hash and by witness: the ids of probe strings and conversations. Where an algorithm
allows it (opd's cross_tokenizer), another teacher is asked about the same text in its own tokens (`batches.alignment`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from posttrain.batches.alignment import Alignment
from posttrain.config import Recipe, Teacher
from posttrain.errors import ConfigError, ModelError
from posttrain.models.heads import TILE_BYTES
from posttrain.models.load import Loaded, load_model
from posttrain.models.locate import check_folder, looks_like_folder, resolve_model_path
from posttrain.models.teacher import Teachers, responsible
from posttrain.plugs import validated
from posttrain.protocols import Packer
from posttrain.tasks.chat import Chat
from posttrain.tasks.preferences import IMAGES
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
    if needs.aligned_teacher:
        refuse_unalignable(recipe, needs, found, tasks)


def refuse_unalignable(recipe: Recipe, needs: Needs, found: Sequence[Teacher], tasks: Sequence[Task]) -> None:
    """Raise ConfigError for what a teacher of other tokens cannot score: anything but one text answer to a prompt."""
    if needs.divergence is not None:
        raise ConfigError(
            "algorithm.cross_tokenizer = true knows the teacher only by spans of text; forms full and top_k, and "
            "baseline, compare distributions over one vocabulary. Set form = 'sampled' and baseline = false, or take a "
            "teacher with the student's tokenizer"
        )
    rollouts, lead = recipe.rollouts, "algorithm.cross_tokenizer = true compares spans of one text answer, and"
    if rollouts.max_turns > 1 or rollouts.env.type != "single_turn":
        raise ConfigError(
            f"{lead} this recipe has rollouts.env '{rollouts.env.type}' with max_turns = {rollouts.max_turns}: later "
            "turns stand on a scaffold that both templates write differently. Set rollouts.env.type = 'single_turn' "
            "and max_turns = 1, or take a teacher with the student's tokenizer"
        )
    mixed = [section.name for section in found if section.mix]
    if mixed:
        raise ConfigError(
            f"{lead} teachers {mixed} are mixed: spans of different tokenizers end at different characters, so "
            "there is no sum per token. Route each task to one teacher with values"
        )
    pictured = next((task.id for task in tasks if not _plain(task)), None)
    if pictured is not None:
        raise ConfigError(
            f"{lead} task '{pictured}' has images or other parts that are no text. Leave such tasks out, or take a "
            "teacher with the student's tokenizer"
        )


def _plain(task: Task) -> bool:
    return IMAGES not in task.columns and all(isinstance(message.get("content"), str) for message in task.messages)


def load_teachers(recipe: Recipe, needs: Needs, student: Loaded, chat: Chat, *, temperature: float) -> Taught | None:
    """Load every teacher, or refuse with what differs from the student; None if the algorithm needs none."""
    found = sections(recipe)
    if not (needs.teacher_logprobs or needs.divergence is not None):
        return None
    loaded = [load_model(section, seed=recipe.run.seed) for section in found]
    notes, alignments, windows = [], {}, [student.window]
    for index, (section, teacher) in enumerate(zip(found, loaded, strict=True)):
        theirs = Chat(teacher.tokenizer, eos_ids=teacher.generation_eos_ids)
        if needs.aligned_teacher and (apart := differences(chat, theirs)):
            alignments[index] = Alignment(student=chat, teacher=theirs, window=teacher.window)
            notes.append(
                f"teacher '{section.name}' reads other tokens ({'; '.join(apart)}) and scores spans of text; "
                "teacher/unaligned is the share of tokens that it has no word on"
            )
            continue
        refuse_other_tokens(section, chat, theirs)
        windows.append(teacher.window)
        sizes = [_vocabulary(one) for one in (student, teacher)]
        if sizes[0] != sizes[1]:
            notes.append(
                f"teacher '{section.name}' has {sizes[1]} output rows, the student {sizes[0]}: rows beyond the smaller "
                "one, which no token uses, are left out of both distributions"
            )
    window = min(windows)
    if window < student.window:
        notes.append(f"window: {window} tokens, a teacher's, instead of the student's {student.window}")
    tile_bytes = getattr(validated("learners", recipe.learner), "tile_bytes", TILE_BYTES)
    teachers = Teachers(
        found,
        [one.model for one in loaded],
        temperature=temperature,
        tile_bytes=tile_bytes,
        digests=[one.revision_digest for one in loaded],
        alignments=alignments,
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
            "with chat_template = FILE. On single text answers algorithm 'opd' in its sampled form can compare spans "
            "of text instead: cross_tokenizer = true"
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
