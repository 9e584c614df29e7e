"""`posttrain explain` prints a page, the list, or writes all pages."""

from pathlib import Path

from posttrain.cli.explain import pages
from posttrain.plugs import plug_names


def test_a_page_is_printed(posttrain):
    done = posttrain("explain", "dapo")
    assert 0 == done.code
    assert "DAPO" in done.out
    assert "How it fails" in done.out


def test_a_page_is_printed_as_markdown(posttrain):
    assert posttrain("explain", "gspo", "--markdown").out.startswith("# GSPO")


def test_without_a_name_the_algorithms_are_listed(posttrain):
    done = posttrain("explain", "--markdown")
    assert all(f"[{name}]" in done.out for name in plug_names("algorithms"))


def test_all_pages_are_written(posttrain, here):
    done = posttrain("explain", "--write", "out")
    assert {*plug_names("algorithms"), "README"} == {file.stem for file in (here / "out").glob("*.md")}
    assert "pages in out" in done.out


def test_a_measured_curve_is_on_the_page(tmp_path):
    (tmp_path / "grpo.jsonl").write_text('{"pass_rate": 0.2}\n{"pass_rate": 0.6}\n', encoding="utf-8")
    found = pages(tmp_path)
    assert "## Measured on the toy model" in found["grpo"]
    assert "## Measured" not in found["dapo"]


def test_no_curve_is_invented(tmp_path):
    assert not any("## Measured" in text for text in pages(Path(tmp_path / "nothing")).values())


def test_a_name_and_write_exclude_each_other(posttrain):
    done = posttrain("explain", "grpo", "--write", "out")
    assert (2, True) == (done.code, "give no name" in done.err)


def test_an_unknown_algorithm_is_answered_with_the_nearest(posttrain):
    done = posttrain("explain", "grppo")
    assert (2, True) == (done.code, "Did you mean 'grpo'" in done.err)
