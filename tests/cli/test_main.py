"""The command itself: help, version, unknown verbs, mistakes, Ctrl-C, and what importing costs."""

import subprocess
import sys

import pytest

from posttrain import __version__
from posttrain.cli import main
from posttrain.errors import ConfigError, Interrupted


def script(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "posttrain.cli.main", *words], capture_output=True, text=True, timeout=120, **options
    )


def test_version(posttrain):
    done = posttrain("--version")
    assert (0, f"posttrain {__version__}\n") == (done.code, done.out)


def test_help_lists_every_verb(posttrain):
    done = posttrain("--help")
    assert (0, []) == (done.code, [verb for verb in main.VERBS if verb not in done.out])


def test_without_a_verb_there_is_help(posttrain):
    assert "Usage:" in posttrain().out


@pytest.mark.parametrize("verb", sorted(main.VERBS))
def test_every_verb_has_help(posttrain, verb):
    done = posttrain(verb, "--help")
    assert (0, True) == (done.code, f" {verb} [OPTIONS]" in done.out)


@pytest.mark.parametrize(("word", "hint"), [("tran", "Did you mean 'train'?"), ("xyz", "Choose from: ")])
def test_an_unknown_verb_names_the_nearest(posttrain, word, hint):
    done = posttrain(word)
    assert (2, True, True) == (done.code, f"there is no verb '{word}'" in done.err, hint in done.err)


def test_an_unknown_option(posttrain):
    done = posttrain("train", "--resme", "x")
    assert (2, True) == (done.code, "No such option" in done.err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train",), "give a recipe, for example"),
        (("train", "nowhere.toml"), "recipe nowhere.toml does not exist"),
        (("train", "grpo.toml", "run.stpes=3"), "unknown key 'run.stpes'. Did you mean 'steps'?"),
        (("train", "grpo.toml", "run.steps"), "override 'run.steps' is not key=value"),
        (("train", "grpo.toml", "algorithm.type=grpoo"), "no plug called 'grpoo'. Did you mean 'grpo'?"),
        (("train", "grpo.toml", "rewards=[]"), "add a [[rewards]] part"),
        (("train", "grpo.toml", "--resume", "x"), "give either a recipe or --resume RUN"),
        (("check", "nowhere.toml"), "recipe nowhere.toml does not exist"),
        (("eval", "model"), "give --tasks FILE.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_end_with_a_message_and_no_traceback(posttrain, words, message):
    done = posttrain(*words)
    assert (2, True, False) == (done.code, message in done.err.replace("\n", " "), "Traceback" in done.err)


def test_brackets_in_a_message_survive(posttrain, monkeypatch):
    def fail(*_, **__):
        raise ConfigError("k = [8] and [[rewards]] and [bold]")

    monkeypatch.setattr("posttrain.cli.train.read_recipe", fail)
    assert "k = [8] and [[rewards]] and [bold]" in posttrain("train", "grpo.toml").err


def test_ctrl_c_ends_with_a_message_and_130(posttrain, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("posttrain.cli.train.read_recipe", interrupt)
    done = posttrain("train", "grpo.toml")
    assert (130, True) == (done.code, "stopped at once" in done.err)


def test_a_wrapped_verb_keeps_its_options():
    def verb(recipe: int = 3) -> None:
        """Says nothing."""

    assert ("verb", "Says nothing.") == (main.interruptible(verb).__name__, main.interruptible(verb).__doc__)


def test_a_wrapped_verb_turns_ctrl_c_into_an_error():
    def verb():
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        main.interruptible(verb)()


def test_the_module_runs_as_a_script():
    done = script("--version")
    assert (0, f"posttrain {__version__}") == (done.returncode, done.stdout.strip())


def test_help_loads_no_torch():
    code = (
        "import sys; sys.argv = ['posttrain', '--help']\n"
        "from posttrain.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "False" == done.stderr.strip()
