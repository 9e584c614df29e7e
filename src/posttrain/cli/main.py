"""The command ``posttrain``: one file per verb, loaded only when its verb is called."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from posttrain import __version__
from posttrain.errors import ConfigError, Interrupted, PosttrainError, did_you_mean
from posttrain.models.threads import prepare_environment

VERBS = {
    "demo": "Warm start by SFT, then GRPO, then evaluation: the main job, in minutes on a laptop.",
    "train": "Train what a recipe says, any algorithm; --dry-run prints the plan, --resume continues.",
    "check": "Prove the invariants on your model, tokenizer, template and recipe.",
    "diff": "Compare two algorithms, library presets, recipes or runs, term by term and token by token.",
    "explain": "Print an algorithm's page: formula, defaults, cost, when to use it, how it fails.",
    "search": "Spend compute at test time: best-of-N or step-verifier beam search, with its cost.",
    "eval": "Measure pass@k of a model or run on tasks, with intervals and protocol fingerprint.",
}


def build_app(verb: str | None) -> typer.Typer:
    """The command tree; only ``verb``'s file is imported."""
    app = typer.Typer(
        help="Post-train language models, exactly, from a laptop CPU to a cluster.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )

    @app.callback(invoke_without_command=True)
    def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if show:
            typer.echo(f"posttrain {__version__}")
            raise typer.Exit

    for name, text in VERBS.items():
        call = interruptible(importlib.import_module(f"posttrain.cli.{name}").run) if name == verb else _unloaded
        app.command(name, help=text)(call)
    return app


def _unloaded() -> None:
    """Stands for a verb that was not called."""


def main() -> None:
    """Run the command line; a user's mistake ends with a message and an exit code, never with a traceback."""
    prepare_environment()
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        refuse_unknown_verb(verb)
        build_app(verb)()
    except PosttrainError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]posttrain:[/] {escape(str(error))}")
        sys.exit(error.exit_code)


def interruptible(call: Callable[..., None]) -> Callable[..., None]:
    """The verb with Ctrl-C as an error like any other; the command line library would end without a word."""

    @functools.wraps(call)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            call(*arguments, **options)
        except KeyboardInterrupt as error:
            raise Interrupted(
                "stopped at once; if a run had begun, its newest checkpoint is intact: continue with --resume"
            ) from error

    return run


def refuse_unknown_verb(verb: str | None) -> None:
    """Raise ConfigError with the nearest verb."""
    if verb is not None and verb not in VERBS:
        raise ConfigError(f"there is no verb '{verb}'.{did_you_mean(verb, VERBS)} See posttrain --help.")


if __name__ == "__main__":
    main()
