"""One rollout: token-exact over turns, every way to end, every way to break."""

import asyncio
import math
from dataclasses import replace

import pytest

from posttrain.envs.scripted import Config as ScriptedConfig
from posttrain.envs.scripted import Scripted
from posttrain.errors import ModelError
from posttrain.models.tiny import build_tokenizer
from posttrain.protocols import EnvStep
from posttrain.rollouts.run import RolloutFailure, run_rollout
from posttrain.tasks.chat import Chat
from posttrain.types import Completion, Ending, Rollout, Sampling
from tests.rollouts.fakes import FakeChat, FakeEngine, RecordingEnv, complete, make_task

GO_ON = EnvStep(reply=({"role": "user", "content": "more"},))


def roll(engine, env=None, *, chat=None, max_turns=4, max_new_tokens=50, seed=11, task=None):
    return asyncio.run(
        run_rollout(
            task or make_task(),
            2,
            seed,
            env_factory=lambda: env or RecordingEnv(),
            engine=engine,
            chat=chat or FakeChat(),
            sampling=Sampling(max_new_tokens=max_new_tokens),
            max_turns=max_turns,
        )
    )


def two_turns(**options):
    return roll(FakeEngine(["a", "bc"]), RecordingEnv([GO_ON, EnvStep(terminated=True)]), **options)


def text(ids):
    return "".join(chr(i) if i else "|" for i in ids)


def test_single_turn_row():
    rollout = roll(FakeEngine(["a"]))
    assert ["<u>hi|<a>a|"] == [text(segment.ids) for segment in rollout.segments]


def test_single_turn_text_has_no_special_tokens():
    assert "a" == roll(FakeEngine(["a"])).text


def test_identity_of_the_rollout():
    rollout = roll(FakeEngine(["a"]))
    assert ("hi", 2, 11, 1, Ending.STOP) == (
        rollout.task.id,
        rollout.index,
        rollout.seed,
        rollout.turn_count,
        rollout.ending,
    )


def test_second_turn_extends_the_row():
    assert ["<u>hi|<a>a|<u>more|<a>bc|"] == [text(segment.ids) for segment in two_turns().segments]


def test_second_prompt_begins_with_the_first_row():
    engine = FakeEngine(["a", "bc"])
    roll(engine, RecordingEnv([GO_ON, EnvStep(terminated=True)]))
    first, second = (request[0] for request in engine.requests)
    assert (*first, ord("a"), 0) == second[: len(first) + 2]


def test_only_sampled_tokens_train():
    (segment,) = two_turns().segments
    assert "a|bc|" == text(i for i, sampled in zip(segment.ids, segment.loss_mask, strict=True) if sampled)


def test_turns_and_versions_per_token():
    (segment,) = two_turns().segments
    sampled = [(t, v) for t, v in zip(segment.turns, segment.versions, strict=True) if t >= 0]
    assert [(0, 3), (0, 3), (1, 4), (1, 4), (1, 4)] == sampled


def test_conversation_is_kept():
    assert ["hi", "a", "more", "bc"] == [message["content"] for message in two_turns().messages]


def test_rewritten_history_begins_a_new_segment():
    rollout = two_turns(chat=FakeChat(bridges=False))
    assert ["<u>hi|<a>a|", "<u>hi|<a>a|<u>more|<a>bc|"] == [text(segment.ids) for segment in rollout.segments]


def test_each_sampled_token_trains_once_over_segments():
    rollout = two_turns(chat=FakeChat(bridges=False))
    assert (2, 3, 5) == (sum(rollout.segments[0].loss_mask), sum(rollout.segments[1].loss_mask), rollout.sampled_count)


def test_turns_count_on_over_segments():
    rollout = two_turns(chat=FakeChat(bridges=False))
    assert {-1, 1} == set(rollout.segments[1].turns)


def test_turns_of_one_segment_share_the_seed():
    engine = FakeEngine(["a", "b"])
    roll(engine, RecordingEnv([GO_ON, EnvStep(terminated=True)]))
    assert [11, 11] == [seed for _, _, seed in engine.requests]


def test_a_new_segment_draws_from_another_seed():
    engine = FakeEngine(["a", "b"])
    roll(engine, RecordingEnv([GO_ON, EnvStep(terminated=True)]), chat=FakeChat(bridges=False))
    (_, _, first), (_, _, second) = engine.requests
    assert (11, True) == (first, second not in (11, 12) and 0 <= second < 2**63)


def test_environment_sees_plain_text():
    env = RecordingEnv()
    roll(FakeEngine(["a"]), env)
    assert [{"role": "assistant", "content": "a"}] == env.seen


def test_stops_at_max_turns():
    rollout = roll(FakeEngine(["a"]), RecordingEnv([GO_ON] * 9), max_turns=3)
    assert (3, "a") == (rollout.turn_count, rollout.messages[-1]["content"])


def test_stops_when_truncated():
    assert 1 == roll(FakeEngine(["a"]), RecordingEnv([EnvStep(truncated=True)])).turn_count


def test_stops_at_a_cut_off_completion_after_showing_it_to_the_environment():
    env = RecordingEnv([GO_ON] * 9)
    rollout = roll(FakeEngine(["a"], ending=Ending.LENGTH), env)
    assert (1, Ending.LENGTH, True, 1) == (rollout.turn_count, rollout.ending, rollout.truncated, len(env.seen))


def test_a_stop_string_goes_on_with_the_turn_closed_as_context():
    rollout = roll(FakeEngine(["a"], ending=Ending.STOP_STRING), RecordingEnv([GO_ON, EnvStep(terminated=True)]))
    (segment,) = rollout.segments
    assert ("<u>hi|<a>a|<u>more|<a>a", "aa") == (
        text(segment.ids),
        text(i for i, sampled in zip(segment.ids, segment.loss_mask, strict=True) if sampled),
    )


def test_stops_when_the_next_prompt_fills_the_window():
    rollout = roll(FakeEngine(["a"], window=12), RecordingEnv([GO_ON] * 9))
    assert (1, Ending.LENGTH, 11) == (rollout.turn_count, rollout.ending, len(rollout.segments[0].ids))


def test_no_segment_without_sampled_tokens_is_left_by_a_full_window():
    rollout = roll(FakeEngine(["a"], window=12), RecordingEnv([GO_ON] * 9), chat=FakeChat(bridges=False))
    assert 1 == len(rollout.segments)


def test_engine_is_asked_for_no_more_than_the_window_holds():
    engine = FakeEngine(["a"], window=20)
    roll(engine)
    assert 11 == engine.requests[0][1].max_new_tokens


def test_prompt_that_fills_the_window_is_a_failure():
    failure = roll(FakeEngine(["a"], window=9))
    assert "prompt of 9 tokens fills the window of 9" == failure.reason


def test_zero_token_completion():
    empty = Completion(ids=(), rollout_logprobs=(), versions=(), ending=Ending.LENGTH)
    rollout = roll(FakeEngine([empty]))
    assert (0, "", 1) == (rollout.sampled_count, rollout.text, len(rollout.segments))


def test_zero_token_completion_in_a_later_turn():
    empty = Completion(ids=(), rollout_logprobs=(), versions=(), ending=Ending.STOP_STRING)
    rollout = roll(FakeEngine(["a", empty]), RecordingEnv([GO_ON, EnvStep(terminated=True)]))
    assert (2, 2, "") == (rollout.sampled_count, rollout.turn_count, rollout.text)


def test_scores_of_the_environment_add_up_over_turns():
    steps = [replace(GO_ON, scores={"s": 1}), EnvStep(terminated=True, scores={"s": 0.5, "t": 2.0})]
    rollout = roll(FakeEngine(["a"]), RecordingEnv(steps))
    assert [("s", 1.5), ("t", 2.0)] == [(score.name, score.value) for score in rollout.scores]


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None])
def test_a_score_of_the_environment_that_is_no_number_is_a_failure(value):
    failure = roll(FakeEngine(["a"]), RecordingEnv([EnvStep(terminated=True, scores={"s": value})]))
    assert f"environment's step: score 's' is {value!r}; expected a finite number" == failure.reason


@pytest.mark.parametrize("place", ["reset", "step", "close"])
def test_a_broken_environment_is_a_failure_and_is_closed(place):
    env = RecordingEnv(fail=place)
    failure = roll(FakeEngine(["a"]), env)
    assert isinstance(failure, RolloutFailure)
    assert failure.reason.startswith(f"environment's {place}: OSError: no display (fakes.py, line")
    assert 1 == env.closed


def test_an_environment_that_cannot_be_made_is_a_failure():
    async def attempt():
        return await run_rollout(
            make_task(),
            0,
            0,
            env_factory=lambda: 1 / 0,
            engine=FakeEngine(["a"]),
            chat=FakeChat(),
            sampling=Sampling(max_new_tokens=5),
        )

    assert asyncio.run(attempt()).reason.startswith("environment: ZeroDivisionError")


def test_a_broken_engine_is_a_failure_and_the_environment_is_closed():
    env = RecordingEnv()
    failure = roll(FakeEngine([RuntimeError("out of memory")]), env)
    assert (True, 1) == (failure.reason.startswith("engine: RuntimeError: out of memory"), env.closed)


def test_an_aborted_completion_is_a_failure():
    assert "engine: aborted before the completion was finished" == roll(FakeEngine(["a"], ending=Ending.ABORTED)).reason


def test_a_completion_with_broken_numbers_is_a_failure():
    broken = replace(complete("a"), rollout_logprobs=(-1.0, math.nan))
    assert "rollout_logprob that is not finite" in roll(FakeEngine([broken])).reason


def test_an_error_of_the_set_up_is_raised_and_the_environment_closed():
    env = RecordingEnv()
    with pytest.raises(ModelError):
        roll(FakeEngine([ModelError("no weights")]), env)
    assert 1 == env.closed


def test_a_chat_that_rewrites_the_row_is_a_bug_and_raised():
    chat = FakeChat()
    chat.bridge = lambda ids, reply: (1, 2, 3)
    with pytest.raises(ValueError, match="sampled tokens would be rewritten"):
        two_turns(chat=chat)


def test_cancelling_closes_the_environment():
    env = RecordingEnv()

    async def cancel():
        task = asyncio.ensure_future(
            run_rollout(
                make_task(),
                0,
                0,
                env_factory=lambda: env,
                engine=FakeEngine(["a"], delays=[60]),
                chat=FakeChat(),
                sampling=Sampling(max_new_tokens=5),
            )
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert 1 == env.closed


class TokenEngine:
    """Samples given ids with a real tokenizer: also ids that its own encoding of the text would never give."""

    window, version = 500, 1

    def __init__(self, rows):
        self.rows = list(rows)
        self.prompts = []

    async def generate(self, prompt_ids, sampling, *, seed):
        self.prompts.append(tuple(prompt_ids))
        ids = tuple(self.rows[len(self.prompts) - 1])
        return Completion(ids=ids, rollout_logprobs=(-1.0,) * len(ids), versions=(1,) * len(ids), ending=Ending.STOP)


def test_real_template_over_three_turns_keeps_every_sampled_id():
    tokenizer = build_tokenizer()
    chat = Chat(tokenizer)
    # "assistant" letter by letter is one token when encoded: sampled ids must survive all the same
    spelled = [tokenizer.convert_tokens_to_ids(letter) for letter in "user"]
    engine = TokenEngine([[*spelled, chat.end_of_turn_id]] * 3)
    env = Scripted(ScriptedConfig(replies=("one", "two")))
    rollout = roll(engine, env, chat=chat)
    assert isinstance(rollout, Rollout)
    (segment,) = rollout.segments
    sampled = [i for i, trained in zip(segment.ids, segment.loss_mask, strict=True) if trained]
    assert [*spelled, chat.end_of_turn_id] * 3 == sampled
    assert [True, True] == [
        later[: len(earlier)] == earlier for earlier, later in zip(engine.prompts, engine.prompts[1:], strict=False)
    ]
    assert "user" == rollout.text
