"""Finds a plug by its file name and builds it: no registry.

``algorithm.type = "grpo"`` loads ``posttrain/algorithms/grpo.py``; ``my_module:MyThing`` loads a class of the
user's own. A plug's options are validated by its ``Config``; its constructor asks for context by parameter name.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from posttrain.config import Plug, validate
from posttrain.errors import ConfigError, did_you_mean
from posttrain.presets.read import with_preset


def plug_names(folder: str) -> list[str]:
    """Names of the plugs that ship in a folder."""
    package = importlib.import_module(f"posttrain.{folder}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def find_plug(folder: str, name: str) -> tuple[type[pydantic.BaseModel] | None, Callable[..., Any]]:
    """Return (Config, class) of a plug; raises ConfigError with the nearest name for an unknown one."""
    if ":" in name:
        return _own_plug(folder, name)
    if name not in plug_names(folder):
        hint = did_you_mean(name, plug_names(folder))
        raise ConfigError(f"{folder}: no plug called '{name}'.{hint} Your own is named module:Class.")
    module = importlib.import_module(f"posttrain.{folder}.{name}")
    (found,) = [item for item in module.__all__ if item != "Config"]
    return module.Config, getattr(module, found)


def _own_plug(folder: str, name: str) -> tuple[type[pydantic.BaseModel] | None, Callable[..., Any]]:
    path, _, attribute = name.partition(":")
    if not path or not attribute:
        raise ConfigError(f"{folder}: '{name}' is not module:Class, for example my_module:MyThing")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a file beside the recipe, as `python file.py` would find it
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ConfigError(
            f"{folder}: cannot import '{path}' of '{name}': {error}. It must be installed or lie in the current folder."
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f"{folder}: module '{path}' has no '{attribute}'.{did_you_mean(attribute, vars(module))}")
    return getattr(found, "Config", getattr(module, "Config", None)), found


def validated(folder: str, plug: Plug) -> Any:
    """The plug's own Config built from the section's options, or the bare options where it has none.

    An algorithm may name a ``preset``, whose options lie under its own (see `posttrain.presets`).
    """
    config_class, _ = find_plug(folder, plug.type)
    if config_class is None:
        return plug.options
    options = with_preset(plug.type, plug.options) if folder == "algorithms" else plug.options
    return validate(config_class, options, where=f"{folder} '{plug.type}'")


def build_plug(folder: str, plug: Plug, **context: Any) -> Any:
    """Construct a plug from its section; context reaches it by parameter name."""
    _, make = find_plug(folder, plug.type)
    wanted = inspect.signature(make).parameters
    _refuse_unknown_context(f"{folder} '{plug.type}'", list(wanted.values())[1:], context)
    return make(validated(folder, plug), **{key: value for key, value in context.items() if key in wanted})


def _refuse_unknown_context(what: str, parameters: Sequence[inspect.Parameter], context: Mapping[str, Any]) -> None:
    """Raise ConfigError if a constructor demands something that nobody can give it."""
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in parameters:
        demanded = parameter.default is parameter.empty and parameter.kind not in open_ended
        if demanded and parameter.name not in context:
            offered = ", ".join(sorted(context)) or "nothing"
            raise ConfigError(
                f"{what} demands '{parameter.name}', which there is not. After its config it can have: {offered}"
            )
