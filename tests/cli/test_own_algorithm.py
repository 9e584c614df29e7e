"""The page on own algorithms is true: its code trains, passes the checks, is compared and explained."""

import json
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "own-algorithm.md"
NAME = "median_baseline:MedianBaseline"


@pytest.fixture
def own(here, posttrain, monkeypatch):
    """The page's module in the current folder, and the command."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    (here / "median_baseline.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(__import__("sys").modules, "median_baseline", raising=False)
    return posttrain


def test_the_module_is_named_as_the_page_says(own):
    assert f'type = "{NAME}"' in PAGE.read_text(encoding="utf-8")


def test_it_trains(own, here):
    done = own("train", "grpo.toml", f"algorithm.type={NAME}", "algorithm.clip=0.3", "run.directory=out", "--no-check")
    assert (0, "") == (done.code, done.err)
    assert 2 == len((here / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())


def test_it_passes_the_checks(own):
    done = own("check", "grpo.toml", f"algorithm.type={NAME}")
    assert (0, False) == (done.code, "✗" in done.out)


def test_it_is_compared(own):
    table = json.loads(own("diff", "dr_grpo", NAME, "--json").out)
    terms = {row["term"]: row["b"] for row in table["terms"]}
    assert ("median reward of the group", "ratio held in 1 +- 0.2") == (terms["baseline"], terms["clip"])
    assert 0.5 < table["effects"]["first_step"]["gradient_cosine"] < 1


def test_it_has_a_page(own):
    done = own("explain", NAME, "--markdown")
    assert "A_i = r_i - median(r)" in done.out
    assert "| `clip` | 0.2 | How far from 1 the ratio may push. |" in done.out


def test_a_wrong_option_is_refused(own):
    done = own("train", "grpo.toml", f"algorithm.type={NAME}", "algorithm.clipp=0.3", "--dry-run")
    assert (2, True) == (done.code, "unknown key 'clipp'. Did you mean 'clip'" in done.err)
