"""posttrain post-trains language models, exactly, from a laptop CPU to a cluster.

    import posttrain
    run = posttrain.train(algorithm="grpo", model="path/or/hub-name", tasks="tasks.jsonl", reward=my_function)
    print(run.findings)

``import posttrain`` loads no torch; ``posttrain.train`` does when it is first used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "resume", "train"]

_LATE = {"train": "posttrain.api", "evaluate": "posttrain.api", "resume": "posttrain.api"}


def __getattr__(name: str) -> Any:
    """Load the library's verbs on first use."""
    if name not in _LATE:
        raise AttributeError(f"module 'posttrain' has no attribute '{name}'")
    return getattr(importlib.import_module(_LATE[name]), name)
