"""The figure is written in the format its name asks for, and impossible ones are refused before any work."""

import sys
from types import SimpleNamespace

import pytest

from posttrain.compare.difference import compare
from posttrain.compare.figure import draw, refuse_figure, telling
from posttrain.compare.sides import resolve
from posttrain.compare.stored import packaged
from posttrain.errors import ConfigError


def found(a="grpo", b="dr_grpo", *, change_b=()):
    return compare(resolve(a), resolve(b, change_b), packaged())


def test_a_png_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    draw(found(), tmp_path / "out.png")
    assert b"\x89PNG" == (tmp_path / "out.png").read_bytes()[:4]


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in one of \.png"):
        refuse_figure(tmp_path / "out.bmp")


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        refuse_figure(tmp_path / "nowhere" / "out.png")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"posttrain\[figures\]"):
        refuse_figure(tmp_path / "out.png")


def test_without_numbers_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(ConfigError, match="nothing to draw: plackett_luce"):
        draw(found(b="plackett_luce"), tmp_path / "out.png")


def test_the_later_step_is_drawn_unless_one_side_is_still():
    moving, still = (SimpleNamespace(numbers=SimpleNamespace(cosine=cosine)) for cosine in (0.5, None))
    assert [True, True, True] == [
        telling(views) is chosen
        for views, chosen in (((moving, moving), moving), ((moving, still), moving), ((still, still), still))
    ]
