"""The numbers in the documentation are those that the code gives."""

import re
from pathlib import Path

import pytest

from posttrain.compare.cost import cost_of
from posttrain.compare.difference import compare
from posttrain.compare.sides import resolve
from posttrain.compare.stored import packaged
from posttrain.plugs import plug_names
from posttrain.presets.read import preset_names

DOCS = Path(__file__).parents[2] / "docs"


def rows(page, columns):
    """Table rows of a page with so many columns."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if len(row) == columns and not row[0].startswith("-")]


PRESETS = [row for row in rows("diff.md", 3) if re.fullmatch(r"[\d.]+", row[2])]


@pytest.mark.parametrize(("name", "cosine", "ratio"), PRESETS)
def test_the_table_of_presets_is_measured(name, cosine, ratio):
    found = compare(resolve("verl-0.10"), resolve(name.split()[0]), packaged())
    numbers = found.views[0].numbers
    assert (float(cosine), float(ratio)) == (
        pytest.approx(numbers.cosine, abs=6e-4),
        pytest.approx(numbers.ratio, abs=6e-4),
    )


def test_every_preset_named_on_the_page_exists():
    assert {row[0] for row in PRESETS} - {"grpo (the paper)"} <= set(preset_names())


COMPARED = [row for row in rows("compare.md", 6) if row[0].strip("`") in plug_names("algorithms")]


@pytest.mark.parametrize("row", COMPARED, ids=[row[0] for row in COMPARED])
def test_the_comparison_s_models_are_the_algorithm_s_needs(row):
    cost = cost_of(resolve(row[0].strip("`")).algorithm.needs)
    words = " + ".join((*cost.trained, *cost.frozen))
    assert (words, str(cost.copies)) == (row[3], row[4])


def test_the_comparison_has_the_six():
    assert {"`ppo`", "`dpo`", "`grpo`", "`dapo`", "`gspo`", "`opd`"} <= {row[0] for row in COMPARED}
