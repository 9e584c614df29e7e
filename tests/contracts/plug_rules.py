"""What a plug file must offer, as a function: it takes a loaded module and its socket and returns the faults."""

import ast
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from posttrain import protocols
from posttrain.config import Settings

SOCKETS = {
    "algorithms": protocols.Algorithm,
    "rewards": protocols.Reward,
    "envs": protocols.Env,
    "engines": protocols.Engine,
    "learners": protocols.Learner,
    "weight_sync": protocols.WeightSync,
}
"""Which socket the plugs of a folder fill."""

CONTEXT = {
    "model",
    "tokenizer",
    "chat",
    "seed",
    "temperature",
    "total_steps",
    "needs",
    "reference_model",
    "teachers",
    "critic",
    "window",
    "stop_ids",
    "token_limit",
    "name",
}
"""Constructor parameters that the assembly knows by name."""


def plug_faults(module: ModuleType, socket: type) -> list[str]:
    """Everything that keeps the module from being a plug of this socket."""
    faults = [] if (module.__doc__ or "").strip() else ["no module docstring"]
    names = list(getattr(module, "__all__", []))
    others = [name for name in names if name != "Config"]
    if "Config" not in names or len(others) != 1:
        return [*faults, f"__all__ must be Config and one class; got {names}"]
    plug = getattr(module, others[0], None)
    if not inspect.isclass(plug):
        return [*faults, f"{others[0]} is not a class"]
    return faults + config_faults(module.Config) + constructor_faults(plug) + socket_faults(plug, socket)


def config_faults(config: Any) -> list[str]:
    """A Config is a frozen section that refuses unknown keys."""
    if not (inspect.isclass(config) and issubclass(config, Settings)):
        return ["Config is not a posttrain.config.Settings"]
    faults = [] if config.model_config.get("frozen") else ["Config is not frozen"]
    return faults if config.model_config.get("extra") == "forbid" else [*faults, "Config lets unknown keys pass"]


def constructor_faults(plug: type) -> list[str]:
    """The constructor takes config first, then only what the assembly can pass."""
    names = list(inspect.signature(plug).parameters)
    faults = [] if names[:1] == ["config"] else [f"the first constructor parameter is not config; got {names[:1]}"]
    unknown = sorted(set(names) - CONTEXT - {"config"})
    return [*faults, f"unknown constructor parameters {unknown}"] if unknown else faults


def socket_faults(plug: type, socket: type) -> list[str]:
    """Every method of the socket is there, with its parameters, and awaited where the socket's is."""
    faults = []
    for name in sorted(vars(socket).keys() | getattr(socket, "__annotations__", {}).keys()):
        if name.startswith("_"):
            continue
        wanted = vars(socket).get(name)
        if inspect.isfunction(wanted):
            faults += method_faults(plug, name, wanted)
        elif not (hasattr(plug, name) or name in assigned_attributes(plug)):
            faults.append(f"attribute {name} is missing")
    return faults


def method_faults(plug: type, name: str, wanted: Callable[..., Any]) -> list[str]:
    """One method against the socket's."""
    method = getattr(plug, name, None)
    if not inspect.isfunction(method):
        return [f"method {name} is missing"]
    faults = []
    if inspect.iscoroutinefunction(method) != inspect.iscoroutinefunction(wanted):
        faults.append(f"method {name} must {'' if inspect.iscoroutinefunction(wanted) else 'not '}be async")
    got, expected = inspect.signature(method).parameters, inspect.signature(wanted).parameters
    missing = [parameter for parameter in expected if parameter not in got]
    demanded = [p for p in got.values() if p.name not in expected and p.default is p.empty and p.kind not in (2, 4)]
    if missing and not any(p.kind == p.VAR_KEYWORD for p in got.values()):
        faults.append(f"method {name} lacks parameters {missing}")
    return faults + [f"method {name} demands {parameter.name}, which no caller gives" for parameter in demanded]


def assigned_attributes(plug: type) -> set[str]:
    """Attributes that any method of the class or its bases sets on self."""
    sources = [inspect.getsource(cls) for cls in plug.__mro__ if cls is not object]
    return {
        node.attr
        for source in sources
        for node in ast.walk(ast.parse(inspect.cleandoc(source) if source[:1].isspace() else source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and getattr(node.value, "id", "") == "self"
    }
