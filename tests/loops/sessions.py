"""A session on a tiny model with a run directory of its own."""

import contextlib

from posttrain.assemble import assemble, prepare
from posttrain.launch import make_session
from posttrain.loops.session import silent
from posttrain.records.run_directory import RunDirectory
from tests.toy_runs import build_loaded, build_recipe


@contextlib.contextmanager
def open_session(path, kind="grpo", /, *, progress=None, loaded=None, tasks=None, **sections):
    """One run about to begin."""
    recipe = build_recipe(kind, **sections)
    assembly = assemble(prepare(recipe, tasks=tasks), loaded=loaded or build_loaded())
    with RunDirectory.create(path, recipe, {}) as run:
        yield make_session(assembly, run, progress or silent())
