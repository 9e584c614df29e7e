"""What every section of a recipe is made of: frozen settings, plugs named by type, and errors that name the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

import pydantic
from pydantic import model_validator

from posttrain.errors import ConfigError, did_you_mean

S = TypeVar("S", bound=pydantic.BaseModel)


class Settings(pydantic.BaseModel):
    """A frozen section of a recipe; unknown keys are errors, and the word ``none`` is TOML's missing null."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _none_by_word(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        empty = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        return {
            key: None if isinstance(value, str) and value == "none" and key in empty else value
            for key, value in values.items()
        }


class Plug(pydantic.BaseModel):
    """A section that names a plug; its other keys belong to the plug's own ``Config``."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    type: str
    """File name in the plug's folder, or ``module:Class`` of your own."""

    @property
    def options(self) -> dict[str, Any]:
        """The keys beside ``type``."""
        return dict(self.model_extra or {})


def validate(model: type[S], values: Mapping[str, Any], *, where: str) -> S:
    """Build settings from plain values, or raise a ConfigError that names key, value, choices and remedy."""
    try:
        return model.model_validate(values)
    except pydantic.ValidationError as error:
        lines = [_explain(model, problem) for problem in error.errors()]
        raise ConfigError(f"{where}: " + "\n".join(lines)) from error


def _explain(model: type[pydantic.BaseModel], problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    name = ".".join(location) or "recipe"
    if problem["type"] == "extra_forbidden":
        return f"unknown key '{name}'.{did_you_mean(location[-1], _fields_at(model, location[:-1]))}"
    if problem["type"] == "missing":
        return f"key '{name}' is missing"
    return f"key '{name}': {problem['msg']}; got {problem['input']!r}"


def _fields_at(model: type[pydantic.BaseModel], location: Sequence[str]) -> list[str]:
    """Names of the fields of the section that ``location`` leads to."""
    here: Any = model
    for part in location:
        fields = getattr(here, "model_fields", {})
        if part not in fields:
            break
        options = [fields[part].annotation, *getattr(fields[part].annotation, "__args__", ())]
        here = next((o for o in options if isinstance(o, type) and issubclass(o, pydantic.BaseModel)), None)
    return list(getattr(here, "model_fields", {}))
