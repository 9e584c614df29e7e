"""A page holds the docstring, the defaults, the cost and the note; an algorithm of one's own has a page too."""

import pytest

from posttrain.compare.notes import read_note
from posttrain.compare.page import page, page_index, sources, table
from posttrain.errors import ConfigError
from posttrain.plugs import plug_names

OWN = '''"""Mine: pushes everything up, see https://example.org/mine.

    L = -sum log pi
"""

from posttrain.algorithms.sft import SFT
from posttrain.config import Settings


class Config(Settings):
    """Options."""

    reduction: str = "token-mean"
    """Token weights."""
    force: float = 2.0
    """How hard it pushes."""


class Mine(SFT):
    """Mine."""

    Config = Config
'''


def test_a_page_has_its_sections_in_order():
    text = page("grpo")
    heads = ["## Formula", "## Terms", "## Defaults", "## What it needs", "## When to use it", "## How it fails"]
    assert sorted(text.index(head) for head in heads) == [text.index(head) for head in heads]


def test_a_page_holds_the_module_s_docstring():
    assert "A_i   = (r_i - mean(r)) / (std(r) + epsilon)" in page("grpo")


def test_a_page_holds_every_option_with_its_default():
    assert "| `clip_high` | 0.28 |" in page("dapo")


def test_a_page_shows_the_neighbours_cost():
    text = page("grpo")
    assert "| ppo | policy (trains) + critic (trains) + reference | 9 |" in text


def test_a_page_shows_the_libraries_presets():
    text = page("grpo")
    assert "`verl-0.10`" in text
    assert "`prime-rl`" in page("dppo")
    assert "As other libraries" not in page("rloo")


def test_an_algorithm_of_one_s_own_has_a_page(tmp_path, monkeypatch):
    (tmp_path / "mine_for_a_page.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    text = page("mine_for_a_page:Mine")
    assert "<https://example.org/mine>" in text
    assert "| `force` | 2 | How hard it pushes. |" in text
    assert "| force |" not in text


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ConfigError, match=r"no plug called 'grpoo'\. Did you mean 'grpo'"):
        page("grpoo")


def test_the_index_lists_every_algorithm():
    text = page_index()
    assert all(f"[{name}]({name}.md)" in text for name in plug_names("algorithms"))


def test_papers_become_links_once():
    text = "see https://arxiv.org/abs/2402.03300, eq. 3; arXiv 2402.03300 and (arXiv 2505.24298)."
    assert "<https://arxiv.org/abs/2402.03300> · <https://arxiv.org/abs/2505.24298>" == sources(text)


def test_a_bar_in_a_cell_is_escaped():
    assert "| a \\| b | c |" == table(("x", "y"), [("a | b", "c")]).splitlines()[-1]


def test_a_table_without_rows_is_refused():
    with pytest.raises(ConfigError, match="without rows"):
        table(("x",), [])


def test_a_purpose_stands_on_the_page():
    note = read_note("dapo")
    assert note is not None
    assert note.purpose in page("dapo")
