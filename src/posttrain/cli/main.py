"""The command ``posttrain``: one file per verb, loaded only when its verb is called."""

from __future__ import annotations

import importlib
import sys

import typer
from rich.console import Console

from posttrain import __version__
from posttrain.errors import PosttrainError
from posttrain.models.threads import prepare_environment

VERBS = {
    "demo": "Warm start by SFT, then GRPO, then evaluation: the main job, in minutes on a laptop.",
    "train": "Train what a recipe says: SFT or online RL; --dry-run prints the plan, --resume continues.",
    "check": "Prove the invariants on your model, tokenizer, template and recipe.",
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
        call = importlib.import_module(f"posttrain.cli.{name}").run if name == verb else _unloaded
        app.command(name, help=text)(call)
    return app


def _unloaded() -> None:
    """Stands for a verb that was not called."""


def main() -> None:
    """Run the command line; a user's mistake ends with a message and an exit code, never with a traceback."""
    prepare_environment()
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        build_app(verb if verb in VERBS else None)()
    except PosttrainError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]posttrain:[/] {_escaped(str(error))}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        Console(stderr=True).print(
            "posttrain: stopped at once; the newest checkpoint is intact, continue with --resume"
        )
        sys.exit(130)


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")


if __name__ == "__main__":
    main()
