"""The rules of the house as functions: each takes a project root and returns what breaks it, one line per place."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

FILE_LIMIT = 400
FUNCTION_LIMIT = 80
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}
LOOSE_ENDS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|raise\s+NotImplemented" + r"Error)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.~$}/-])/(?:wo" + r"rk|tm" + r"p|ro" + r"ot|home/\w+)(?=/|\b(?!\w))")
CODE_FOLDERS = ("src", "tests", "examples", "bench")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".jinja", ".txt", ".lock", ".cfg", ".yml", ".yaml", ".json", ".html", ".js"}
SETTINGS_ROOTS = {"Settings", "Plug", "BaseModel"}
FRONT_PAGE = "src/posttrain/__init__.py"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_files(root: Path, *folders: str) -> list[Path]:
    """Python files of the folders (all code folders if none is named), sorted."""
    return sorted(path for folder in folders or CODE_FOLDERS for path in (root / folder).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def long_files(root: Path) -> list[str]:
    """No code file is longer than 400 lines."""
    counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in code_files(root)}
    return [f"{place(root, path)}: {count} lines" for path, count in counts.items() if count > FILE_LIMIT]


def long_functions(root: Path) -> list[str]:
    """No function is longer than 80 lines."""
    return [
        f"{place(root, path, node)}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in code_files(root)
        for node in ast.walk(parse(path))
        if isinstance(node, FUNCTIONS) and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LIMIT
    ]


def missing_docstrings(root: Path) -> list[str]:
    """Every public module, class and function of src has a docstring that starts with a sentence."""
    return [
        f"{place(root, path, node)}: {name} {fault}"
        for path in code_files(root, "src")
        for name, node in public_definitions(path)
        if (fault := docstring_fault(ast.get_docstring(node)))
    ]


def public_definitions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """The module and its public classes, methods and functions, not those inside functions."""
    tree = parse(path)
    yield path.stem, tree
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, (ast.ClassDef, *FUNCTIONS)) and not node.name.startswith("_"):
                yield node.name, node
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                waiting.append(node)


def docstring_fault(text: str | None) -> str:
    """What is wrong with a docstring's first paragraph, or nothing."""
    if not text:
        return "has no docstring"
    paragraph = text.split("\n\n")[0].strip()
    word = paragraph.split()[0]
    formula = re.search(r"[=^(/\[]", paragraph)
    if word.isalpha() and word.islower() and word != "posttrain" and not formula:
        return f"has a docstring that starts in lower case: {paragraph[:50]!r}"
    if not re.search(r"[.:?!]`*\)?$|\.(\s|$)", paragraph):
        return f"has a docstring without a first sentence: {paragraph[:50]!r}"
    return ""


def local_imports(root: Path) -> list[str]:
    """No import stands inside a function of src, except of an optional library, or on the package's front page."""
    required = required_modules(root)
    return [
        f"{place(root, path, node)}: imports {module} inside a function"
        for path in code_files(root, "src")
        if place(root, path) != FRONT_PAGE
        for function in ast.walk(parse(path))
        if isinstance(function, FUNCTIONS)
        for node in ast.walk(function)
        for module in imported_modules(node)
        if module.split(".")[0] in required
    ]


def required_modules(root: Path) -> set[str]:
    """Top-level modules that are always there: the standard library, our own, and the core dependencies."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[^\w.-]", line)[0].lower().replace("-", "_") for line in project["dependencies"]}
    return names | set(sys.stdlib_module_names) | {"posttrain"}


def imported_modules(node: ast.AST) -> list[str]:
    """Names of the modules an import statement loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["posttrain"] if node.level else [node.module or ""]
    return []


def vague_names(root: Path) -> list[str]:
    """No module or folder is called utils, helpers, common, base or manager."""
    paths = [path for folder in CODE_FOLDERS for path in (root / folder).rglob("*") if path.suffix in ("", ".py")]
    return [
        f"{place(root, path)}: says nothing about what is inside"
        for path in sorted(paths)
        if VAGUE_NAMES & set(path.stem.lower().split("_"))
    ]


def loose_ends(root: Path) -> list[str]:
    """Nothing is left for later, and nothing is a stub."""
    return matches(root, LOOSE_ENDS, code_files(root))


def machine_paths(root: Path) -> list[str]:
    """No file names a folder of the machine it was written on."""
    files = [path for path in root.iterdir() if path.is_file() and (path.suffix in TEXT_SUFFIXES or not path.suffix)]
    for folder in (*CODE_FOLDERS, "docs", "recipes", ".ci"):
        files += [path for path in (root / folder).rglob("*") if path.is_file() and is_text(path)]
    return matches(root, MACHINE_PATHS, sorted(files))


def is_text(path: Path) -> bool:
    """Whether a file is one that people write."""
    return (path.suffix in TEXT_SUFFIXES or not path.suffix) and "__pycache__" not in path.parts


def matches(root: Path, pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    """Each line of the files that the pattern finds."""
    return [
        f"{place(root, path)}:{number}: {line.strip()[:80]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def settings_classes(root: Path) -> list[tuple[Path, ast.ClassDef]]:
    """Every class of src that is a section of a recipe, its own bases resolved by name."""
    classes = [
        (path, node)
        for path in code_files(root, "src")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
    ]
    known = set(SETTINGS_ROOTS)
    for _ in range(3):
        known |= {node.name for _, node in classes if base_names(node) & known and node.name != "Config"}
    return [(path, node) for path, node in classes if base_names(node) & known]


def base_names(node: ast.ClassDef) -> set[str]:
    """Last part of each base's name."""
    return {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}


def settings_fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign, str | None]]:
    """Name, place and docstring of each field."""
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            yield statement.target.id, statement, text if isinstance(text, str) else None


def undocumented_fields(root: Path) -> list[str]:
    """Every config field has a sentence under it."""
    return [
        f"{place(root, path, field)}: {node.name}.{name} {fault}"
        for path, node in settings_classes(root)
        for name, field, text in settings_fields(node)
        if (fault := docstring_fault(text)) and "lower case" not in fault
    ]


def unread_fields(root: Path) -> list[str]:
    """Every config field is read somewhere: as an attribute, or by its name as a key. Validators do not count."""
    read: set[str] = set()
    for path in code_files(root, "src"):
        read |= names_read(parse(path))
    return [
        f"{place(root, path, field)}: {node.name}.{name} is read nowhere"
        for path, node in settings_classes(root)
        for name, field, _ in settings_fields(node)
        if name not in read
    ]


def names_read(tree: ast.AST) -> set[str]:
    """Attribute names loaded, and literal names used as a key or with getattr, outside validators."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FUNCTIONS) and any("validator" in ast.dump(mark) for mark in node.decorator_list):
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            names.add(str(node.slice.value))
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in (
            "getattr",
            "get",
        ):
            names |= {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
        names |= names_read(node)
    return names


def place(root: Path, path: Path, node: ast.AST | None = None) -> str:
    """Where something is, relative to the root."""
    line = getattr(node, "lineno", None)
    return path.relative_to(root).as_posix() + (f":{line}" if line else "")
