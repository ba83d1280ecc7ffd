"""The verbs of `gpusim registry` as functions.

from gpusim_rl import registry

registry.add("registry", "policy.onnx")
registry.promote("registry", "quadruped", 1, "released", why="first walk")
"""

from gpusim_rl.commands.registry import (
    add,
    compare,
    export,
    history,
    import_version,
    promote,
    retain,
    rollback,
)
from gpusim_rl.commands.registry import list_versions as list

__all__ = [
    "add",
    "compare",
    "export",
    "history",
    "import_version",
    "list",
    "promote",
    "retain",
    "rollback",
]
