"""The direction of imports (docs/design.md): a module imports only from groups to its left."""

import ast
from pathlib import Path

import pytest

from tests.worlds import ROOT

ORDER = """
    maths mirror graph disk bundle ranks variety actuator < noise checkpoint curriculum motor < sim draws < randomise
    < incident past tally task < sight < env < policy returns fused < loss rollout vectors < ppo < plain plan compare run board
    < saver evaluate export legs < stance < outfit < robot < config levels loop < values < resume
    < command show assemble < bench repro verify fit_actuator adapt < gym rsl < sb3 < train play
"""
RANK = {name: rank for rank, group in enumerate(ORDER.split("<")) for name in group.split()}
ALONE = {"deploy"}  # imports nothing of ours; train and play may import it
READERS = set("config values resume command assemble bench repro verify train play".split())  # who may know Hydra and YAML


def imports(file: Path) -> set[str]:
    """Dotted names of all that a file imports, inside functions too; relative ones as '.name'."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found |= {f"{base}.{alias.name}" if base == "gpusim_rl" or node.level else base for alias in node.names}
    return found


def module(name: str) -> str | None:
    """'gpusim_rl.sim.native' → 'sim'; None for what is not of our package."""
    head, _, rest = name.partition(".")
    return rest.split(".")[0] if head == "gpusim_rl" else None


def violations(root: Path) -> list[str]:
    """One line for each import against the direction."""
    wrong = []
    ours = [p for p in (root / "gpusim_rl").rglob("*.py") if p.name != "__init__.py" or p.parent.name != "gpusim_rl"]
    for file in [*ours, *root.glob("*.py"), *(root / "tasks").glob("*.py")]:
        path = file.relative_to(root)
        task = path.parts[0] == "tasks"
        me = path.parts[1] if path.parts[0] == "gpusim_rl" else path.parts[0]
        me = me.removesuffix(".py")
        if not task and me not in RANK and me not in ALONE:
            wrong.append(f"{path} has no place in the order")
            continue
        for name in sorted(imports(file)):
            other = module(name)
            if name.startswith("."):
                wrong.append(f"{path} imports {name}, relative")
            elif name.split(".")[0] in ("hydra", "omegaconf", "yaml") and (task or me not in READERS | {"run"}):
                wrong.append(f"{path} reads config: {name}")
            elif me == "run" and name.split(".")[0] in ("hydra", "omegaconf"):
                wrong.append(f"{path} reads config: {name}")
            elif task and other not in (None, "maths", "mirror", "task"):
                wrong.append(f"{path} imports {name}")
            elif me in ALONE and (other is not None or name.split(".")[0] in ("tasks", "torch")):
                wrong.append(f"{path} imports {name}")
            elif name.split(".")[0] == "tasks" and not task and me not in READERS:
                wrong.append(f"{path} imports {name}")
            elif not task and other in RANK and me in RANK and RANK[other] >= RANK[me] and other != me:
                wrong.append(f"{path} imports {name}, which is not to its left")
            elif other is not None and other not in RANK and other not in ALONE:
                wrong.append(f"{path} imports {name}, which has no place in the order")
    return wrong


def test_imports_go_one_way():
    """Every module of the project imports only from groups to its left."""
    assert violations(ROOT) == []
    assert len(list((ROOT / "gpusim_rl").rglob("*.py"))) > 10


@pytest.mark.parametrize(
    "path, line, complaint",
    [
        ("gpusim_rl/maths.py", "from gpusim_rl.task import Task", "not to its left"),
        ("gpusim_rl/maths.py", "from gpusim_rl import noise", "not to its left"),
        ("gpusim_rl/sim/native.py", "import gpusim_rl.env", "not to its left"),
        ("gpusim_rl/env.py", "def f():\n    from gpusim_rl.ppo import PPO", "not to its left"),
        ("gpusim_rl/policy.py", "from gpusim_rl import returns", "not to its left"),
        ("gpusim_rl/env.py", "from . import ppo", "relative"),
        ("gpusim_rl/env.py", "from omegaconf import OmegaConf", "reads config"),
        ("gpusim_rl/ppo.py", "import hydra.utils", "reads config"),
        ("gpusim_rl/env.py", "import tasks.walk", "imports tasks.walk"),
        ("gpusim_rl/deploy.py", "from gpusim_rl.maths import rotate", "deploy.py imports gpusim_rl.maths"),
        ("gpusim_rl/deploy.py", "import torch", "deploy.py imports torch"),
        ("gpusim_rl/utils.py", "", "no place in the order"),
        ("gpusim_rl/train.py", "import gpusim_rl.utils", "no place in the order"),
        ("tasks/walk.py", "from gpusim_rl.env import Env", "walk.py imports gpusim_rl.env"),
        ("tasks/walk.py", "from gpusim_rl.noise import Noise", "walk.py imports gpusim_rl.noise"),
        ("tasks/walk.py", "import yaml", "reads config"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path, path, line, complaint):
    """One import against the direction, in a tree that is otherwise right, is named."""
    good = {
        "gpusim_rl/__init__.py": "",
        "gpusim_rl/maths.py": "import torch",
        "gpusim_rl/sim/__init__.py": "def make():\n    from gpusim_rl.sim.native import Native",
        "gpusim_rl/sim/native.py": "from gpusim_rl.sim import LIMIT",
        "gpusim_rl/task.py": "from gpusim_rl.noise import Noise",
        "gpusim_rl/env.py": "from gpusim_rl.task import Task\nfrom gpusim_rl import maths",
        "gpusim_rl/deploy.py": "import numpy",
        "tasks/walk.py": "from gpusim_rl.maths import rotate\nfrom gpusim_rl.task import Task\nimport torch",
        "train.py": "import hydra\nfrom gpusim_rl.env import Env\nfrom gpusim_rl import deploy",
    }
    for name, text in good.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert violations(tmp_path) == []
    with open(tmp_path / path, "a") as file:
        file.write(f"\n{line}\n")
    (found,) = violations(tmp_path)
    assert complaint in found and path in found
