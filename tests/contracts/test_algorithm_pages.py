"""Every shipped algorithm can be explained and compared: it has a note, terms, and an up-to-date page in docs."""

from pathlib import Path

import pytest

from posttrain.cli.explain import pages
from posttrain.compare.notes import read_note
from posttrain.compare.sides import resolve
from posttrain.plugs import plug_names

ROOT = Path(__file__).parents[2]
NAMES = plug_names("algorithms")
PAGES = pages(ROOT / "bench" / "curves")


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_says_what_it_is_for_and_how_it_fails(name):
    note = read_note(name)
    assert note is not None, f"write algorithms/{name}.toml: see posttrain.compare.notes"
    assert len(note.failures) >= 2
    assert all((note.title, note.purpose, note.when, note.otherwise, note.cost))


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_names_its_terms(name):
    terms = resolve(name).terms()
    assert {"trains on", "loss", "reduction", "baseline"} <= terms.keys(), f"add [terms] to algorithms/{name}.toml"
    assert all(terms.values())


@pytest.mark.parametrize("name", NAMES)
def test_every_neighbour_exists(name):
    note = read_note(name)
    assert note is not None
    assert set(note.neighbours) <= set(NAMES)


def test_every_note_belongs_to_an_algorithm():
    folder = ROOT / "src" / "posttrain" / "algorithms"
    assert {file.stem for file in folder.glob("*.toml")} <= set(NAMES)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_in_docs_is_the_generated_one(name):
    file = ROOT / "docs" / "algorithms" / f"{name}.md"
    assert file.is_file(), "run make docs"
    assert PAGES[name] == file.read_text(encoding="utf-8"), "run make docs"


def test_there_is_no_page_without_an_algorithm():
    assert {file.stem for file in (ROOT / "docs" / "algorithms").glob("*.md")} == set(PAGES)
