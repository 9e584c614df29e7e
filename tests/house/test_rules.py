"""The project keeps the rules of the house, and each rule notices a planted violation."""

from pathlib import Path

import pytest

from tests.house import rules

ROOT = Path(__file__).parents[2]
RULES = [
    rules.long_files,
    rules.long_functions,
    rules.missing_docstrings,
    rules.local_imports,
    rules.vague_names,
    rules.loose_ends,
    rules.machine_paths,
    rules.undocumented_fields,
    rules.unread_fields,
]
SECTION = '''"""A plug."""


class Config(Settings):
    """Settings."""

    size: int = 1
{docstring}

class Plug:
    """A plug."""

    def __init__(self, config):
        self.size = {value}
'''
DOCUMENTED = '    """How big it is."""\n'
LONG_FUNCTION = '"""A module."""\n\n\ndef walk():\n    """Walk."""\n' + "    x = 1\n" * 90
LOCAL = '"""A module."""\n\n\ndef load():\n    """Load."""\n    import {module}\n'


@pytest.fixture
def plant(tmp_path):
    """Write files into a small project and return its root."""
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["numpy>=2", "Tomli-W>=1"]\n')

    def put(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return tmp_path

    return put


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule):
    assert [] == rule(ROOT), rule.__doc__


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_tidy_module_breaks_no_rule(rule, plant):
    root = plant("src/posttrain/tidy.py", SECTION.format(docstring=DOCUMENTED, value="config.size"))
    assert [] == rule(root)


def test_a_long_file_is_noticed(plant):
    root = plant("src/posttrain/long.py", "x = 1\n" * 401)
    assert ["src/posttrain/long.py: 401 lines"] == rules.long_files(root)


def test_a_long_test_file_is_noticed(plant):
    root = plant("tests/test_long.py", "x = 1\n" * 401)
    assert ["tests/test_long.py: 401 lines"] == rules.long_files(root)


def test_a_long_function_is_noticed(plant):
    root = plant("src/posttrain/walk.py", LONG_FUNCTION)
    assert ["src/posttrain/walk.py:4: walk has 92 lines"] == rules.long_functions(root)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        '"""A module."""\n\n\ndef walk():\n    return 1\n',
        '"""A module."""\n\n\nclass Walk:\n    pass\n',
        '"""A module."""\n\n\nclass Walk:\n    """Walk."""\n\n    def on(self):\n        return 1\n',
        '"""A module."""\n\n\nasync def walk():\n    return 1\n',
        '"""no sentence"""\n',
        '"""A heading without end"""\n',
        '"""walks in lower case."""\n',
    ],
)
def test_a_missing_or_poor_docstring_is_noticed(text, plant):
    assert 1 == len(rules.missing_docstrings(plant("src/posttrain/walk.py", text)))


def test_private_names_need_no_docstring(plant):
    root = plant(
        "src/posttrain/walk.py", '"""A module."""\n\n\ndef _walk():\n    return 1\n\n\nclass _Walk:\n    x = 1\n'
    )
    assert [] == rules.missing_docstrings(root)


@pytest.mark.parametrize("module", ["json", "numpy", "tomli_w", "posttrain.types"])
def test_an_import_inside_a_function_is_noticed(module, plant):
    root = plant("src/posttrain/load.py", LOCAL.format(module=module))
    assert [f"src/posttrain/load.py:6: imports {module} inside a function"] == rules.local_imports(root)


def test_an_optional_library_may_be_imported_where_it_is_needed(plant):
    assert [] == rules.local_imports(plant("src/posttrain/load.py", LOCAL.format(module="vllm")))


@pytest.mark.parametrize("path", ["src/posttrain/utils.py", "tests/helpers/x.py", "src/posttrain/plug_base.py"])
def test_a_name_that_says_nothing_is_noticed(path, plant):
    assert 1 == len(rules.vague_names(plant(path, '"""A module."""\n')))


@pytest.mark.parametrize("word", ["# TO" + "DO later", "# FIX" + "ME", "raise NotImplemented" + "Error"])
def test_a_loose_end_is_noticed(word, plant):
    assert 1 == len(rules.loose_ends(plant("src/posttrain/later.py", word + "\n")))


@pytest.mark.parametrize("folder", ["wo" + "rk", "tm" + "p", "ro" + "ot"])
@pytest.mark.parametrize("path", ["src/posttrain/a.py", "docs/a.md", "tests/a.py", "README.md", "recipes/a.toml"])
def test_a_path_of_the_machine_is_noticed(folder, path, plant):
    assert 1 == len(rules.machine_paths(plant(path, f'open("/{folder}/file")\n')))


@pytest.mark.parametrize("text", ["a/work/b", "https://x.org/tmp/", "/tmpfs", "network/root", "per-group/rooted"])
def test_what_only_looks_like_such_a_path_is_let_through(text, plant):
    assert [] == rules.machine_paths(plant("docs/a.md", text + "\n"))


def test_a_config_field_without_docstring_is_noticed(plant):
    root = plant("src/posttrain/plug.py", SECTION.format(docstring="", value="config.size"))
    assert ["src/posttrain/plug.py:7: Config.size has no docstring"] == rules.undocumented_fields(root)


@pytest.mark.parametrize("value", ["1", "'size'"])
def test_a_config_field_that_nobody_reads_is_noticed(value, plant):
    text = SECTION.format(docstring=DOCUMENTED, value=value).replace("self.size = ", "self.other = ")
    root = plant("src/posttrain/plug.py", text)
    assert ["src/posttrain/plug.py:7: Config.size is read nowhere"] == rules.unread_fields(root)


def test_a_validator_is_no_reader(plant):
    validator = DOCUMENTED + '\n    @model_validator(mode="after")\n    def _check(self):\n        return self.size\n'
    root = plant("src/posttrain/plug.py", SECTION.format(docstring=validator, value=1))
    assert ["src/posttrain/plug.py:7: Config.size is read nowhere"] == rules.unread_fields(root)


@pytest.mark.parametrize("value", ["config.size", "getattr(config, 'size')", "config['size']"])
def test_a_field_may_be_read_as_attribute_or_key(value, plant):
    assert [] == rules.unread_fields(plant("src/posttrain/plug.py", SECTION.format(docstring=DOCUMENTED, value=value)))


def test_a_section_that_inherits_from_a_section_is_one(plant):
    plant("src/posttrain/config.py", '"""Config."""\n\n\nclass Section(Settings):\n    """A section."""\n')
    root = plant(
        "src/posttrain/more.py", '"""More."""\n\n\nclass More(Section):\n    """More."""\n\n    odd: int = 1\n'
    )
    assert ["src/posttrain/more.py:7: More.odd is read nowhere"] == rules.unread_fields(root)
