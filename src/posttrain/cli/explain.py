"""``posttrain explain NAME``: an algorithm's page, or the list; ``--write FOLDER`` makes docs/algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from posttrain.compare.curve import curve_section
from posttrain.compare.page import page, page_index
from posttrain.errors import ConfigError
from posttrain.plugs import plug_names

CONSOLE = Console(highlight=False)
CURVES = Path("bench/curves")


def run(
    name: Annotated[str | None, typer.Argument(help="An algorithm, or module:Class of your own.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page as Markdown text.")] = False,
    write: Annotated[Path | None, typer.Option(help="Write every page into this folder instead.")] = None,
) -> None:
    """Print one page, or the list of algorithms."""
    if write is not None:
        if name is not None:
            raise ConfigError("--write makes every page: give no name with it")
        CONSOLE.print(f"{len(write_pages(write, CURVES))} pages in {write}")
        return
    text = page_index() if name is None else page(name)
    if markdown:
        print(text, end="")
        return
    CONSOLE.print(Markdown(text))


def write_pages(folder: Path, curves: Path) -> list[Path]:
    """Write the index and the page of every shipped algorithm, with its measured curve; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages(curves).items():
        file = folder / f"{name}.md"
        file.write_text(text, encoding="utf-8")
        written.append(file)
    return written


def pages(curves: Path) -> dict[str, str]:
    """File stem to text: the index as ``README`` and every algorithm."""
    made = {"README": page_index()}
    names = plug_names("algorithms")
    for name in names:
        measured = curve_section(name, curves, names)
        made[name] = page(name) + (f"\n{measured}" if measured else "")
    return made
