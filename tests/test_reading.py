"""Where an answer stands, and that there is none where it does not."""

import pytest

from posttrain.reading import after_hashes, last_boxed, last_tag, read_place


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer> 1 </answer>", "1"),
        ("<answer>1</answer><answer>2</answer>", "2"),
        ("<answer>1</answer> <answer>2", "1"),
        ("<answer>a <answer>b</answer>", "b"),
        ("</answer>1<answer>", None),
        ("<ANSWER>1</ANSWER>", None),
        ("", None),
        ("<answer></answer>", ""),
    ],
)
def test_last_tag(text, expected):
    assert expected == last_tag(text, "answer")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{1}", "1"),
        (r"\boxed{1} \boxed{ 2 }", "2"),
        (r"\boxed{1} \fbox{2}", "2"),
        (r"\fbox{1} \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1", None),
        (r"\boxed 1", None),
        ("", None),
    ],
)
def test_last_boxed(text, expected):
    assert expected == last_boxed(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("#### 1", "1"), ("#### 1\n#### 2\nend", "2"), ("####", ""), ("### 1", None), ("", None)]
)
def test_after_hashes(text, expected):
    assert expected == after_hashes(text)


def test_whole_is_the_text_as_it_is():
    assert " a\n" == read_place(" a\n", "whole")


def test_another_tag():
    assert "1" == read_place("<final>1</final>", "tag", "final")
