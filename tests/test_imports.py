"""The direction of imports: each package imports only those that MAY_IMPORT allows it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.draw_packages import PICTURE, draw, rows, without_implied
from tests.packages import (
    COMMANDS,
    imported_names,
    levels,
    package,
    package_imports,
    package_of_name,
    source_files,
)
from tests.worlds import ROOT

MAY_IMPORT = {
    "core": "",
    "sim": "core",
    "networks": "core",
    "runs": "core",
    "viewer": "core runs",
    "robots": "core sim",
    "envs": "core sim robots",
    "tasks": "core robots envs",
    "algorithms": "core networks envs",
    "deploy": "core runs robots networks envs",
    "config": "core sim robots envs runs",
    "training": "core sim networks envs runs algorithms",
    "build": "core sim robots envs tasks networks algorithms runs training deploy config",
}
EVERY = " ".join(MAY_IMPORT)
MAY_IMPORT |= {"adapters": EVERY, "tools": EVERY}
MAY_IMPORT |= {COMMANDS: " ".join([*MAY_IMPORT, COMMANDS])}

# Who may read configuration, and with what. All others take plain values.
READERS = {
    **dict.fromkeys(("config", "build", "adapters", "tools", COMMANDS), "hydra omegaconf yaml"),
    "runs": "yaml",  # a run directory holds config.yaml
}
STANDALONE = Path("gpusim_rl/deploy/runtime.py")  # copied to the robot: no torch, nothing of ours
ONBOARD = Path("gpusim_rl/deploy/onboard")  # a folder that is copied, whose files import each other


def violations(root: Path) -> list[str]:
    """One line for each import that the rule forbids."""
    wrong = []
    for file in source_files(root):
        me = package(file)
        if me not in MAY_IMPORT:
            wrong.append(f"{file} is in package {me}, which MAY_IMPORT lacks")
            continue
        for name in sorted(imported_names((root / file).read_text())):
            complaint = forbidden(file, me, name)
            if complaint:
                wrong.append(f"{file} imports {name}: {complaint}")
    return wrong


def forbidden(file: Path, me: str, name: str) -> str:
    """Why a module of package `me` must not import the dotted name; empty if it may."""
    head, other = name.split(".")[0], package_of_name(name)
    if name.startswith("."):
        inside = file.parent == ONBOARD and not name.startswith("..")
        return "" if inside else "relative imports are not used"
    standalone = file == STANDALONE or file.parent == ONBOARD
    if standalone and (head == "torch" or other is not None):
        return "the runtime of an exported policy imports neither torch nor the project"
    if head in ("hydra", "omegaconf", "yaml") and head not in READERS.get(me, "").split():
        return f"{me} does not read configuration"
    if other is None or other == me:
        return ""
    if other not in MAY_IMPORT:
        other = COMMANDS  # a module beside build.py
    return "" if other in MAY_IMPORT[me].split() else f"{me} may not import {other}"


def test_imports_follow_the_rule():
    """No module of the project imports a package that its own may not import."""
    assert violations(ROOT) == []
    assert len(source_files(ROOT)) > 70


def test_there_are_no_cycles():
    """Allowed and actual imports both give every package a level: none reaches itself."""
    allowed = {name: set(others.split()) - {name} for name, others in MAY_IMPORT.items()}
    level = levels(allowed)
    for name, others in package_imports(ROOT).items():
        assert all(level[other] < level[name] for other in others), name
    assert levels(package_imports(ROOT)).keys() == level.keys()


@pytest.mark.parametrize(
    "path, line, complaint",
    [
        ("gpusim_rl/core/maths.py", "from gpusim_rl.envs.task import Task", "core may not"),
        ("gpusim_rl/sim/native.py", "import gpusim_rl.envs.env", "sim may not import envs"),
        ("gpusim_rl/sim/native.py", "from gpusim_rl import envs", "sim may not import envs"),
        (
            "gpusim_rl/envs/env.py",
            "def f():\n    from gpusim_rl.algorithms.ppo.ppo import PPO",
            "envs may not import algorithms",
        ),
        (
            "gpusim_rl/envs/env.py",
            "import importlib\nimportlib.import_module('gpusim_rl.runs.run')",
            "envs may not import runs",
        ),
        ("gpusim_rl/envs/env.py", "import train", "envs may not import commands"),
        ("gpusim_rl/envs/env.py", "from gpusim_rl import play", "envs may not import commands"),
        ("gpusim_rl/envs/env.py", "import tasks.walk", "envs may not import tasks"),
        ("gpusim_rl/envs/env.py", "from . import task", "relative"),
        ("gpusim_rl/envs/env.py", "from omegaconf import OmegaConf", "configuration"),
        ("gpusim_rl/envs/env.py", "import hydra.utils", "configuration"),
        ("gpusim_rl/runs/run.py", "import omegaconf", "configuration"),
        ("gpusim_rl/deploy/runtime.py", "import torch.nn", "neither torch"),
        ("gpusim_rl/deploy/runtime.py", "from gpusim_rl.core.maths import norm", "neither"),
        ("gpusim_rl/tools/verify.py", "import gpusim_rl.adapters.common", "tools may not"),
        ("gpusim_rl/adapters/common.py", "from gpusim_rl import tools", "adapters may not"),
        ("gpusim_rl/adapters/common.py", "import gpusim_rl.viewer.film", ""),
        ("gpusim_rl/utils/text.py", "x = 1", "MAY_IMPORT lacks"),
        ("tasks/classic/walk.py", "from gpusim_rl.envs.env import Env", ""),
        ("tasks/classic/walk.py", "from gpusim_rl.algorithms.ppo import ppo", "tasks may not"),
        ("tasks/classic/walk.py", "import yaml", "configuration"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path, path, line, complaint):
    """One forbidden import, in a tree that is otherwise right, is named; an allowed one is not."""
    good = {
        "gpusim_rl/__init__.py": '"""The package."""',
        "gpusim_rl/core/maths.py": "import torch",
        "gpusim_rl/sim/native.py": "from gpusim_rl.sim import base",
        "gpusim_rl/envs/env.py": "from gpusim_rl.core import maths",
        "gpusim_rl/runs/run.py": "import yaml",
        "gpusim_rl/deploy/runtime.py": "import numpy",
        "gpusim_rl/tools/verify.py": "from gpusim_rl import build",
        "gpusim_rl/build.py": "import tasks\nfrom gpusim_rl.config import compose",
        "tasks/classic/walk.py": "from gpusim_rl.core.maths import rotate\nimport torch",
        "train.py": "import hydra\nfrom gpusim_rl import deploy, viewer\nimport play",
    }
    for name, text in good.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert violations(tmp_path) == []
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    with open(tmp_path / path, "a") as file:
        file.write(f"\n{line}\n")
    if complaint:
        (violation,) = violations(tmp_path)
        assert complaint in violation and path in violation
    else:
        assert violations(tmp_path) == []


def test_a_cycle_is_caught():
    """Levels do not exist where packages import one another in a circle."""
    with pytest.raises(ValueError, match="cycle"):
        levels({"a": {"b"}, "b": {"c"}, "c": {"a"}})


@pytest.mark.parametrize(
    "modules",
    [
        "gpusim_rl.config.command_line gpusim_rl.config.compose",
        "train play",
        "gpusim_rl.runs.run",
        "gpusim_rl.deploy.runtime",
    ],
)
def test_importing_does_not_load_torch(modules):
    """The command line, run directories and the exported policy's runtime import without torch."""
    code = "; ".join(
        [
            *(f"import {module}" for module in modules.split()),
            "import sys",
            "print([m for m in ('torch', 'mujoco', 'warp') if m in sys.modules])",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stdout + done.stderr


def test_init_files_are_empty():
    """Importing a package runs nothing: each `__init__.py` is empty, the top one a docstring."""
    folders = ("gpusim_rl", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("__init__.py")]
    assert len(files) > 15
    for file in files:
        body = ast.parse(file.read_text()).body
        if file == ROOT / "gpusim_rl" / "__init__.py":
            (only,) = body
            assert isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant)
        else:
            assert file.read_text() == "", file


def test_the_picture_is_fresh():
    """docs/packages.svg is what tests/draw_packages.py draws from the source, byte by byte."""
    assert PICTURE.read_text() == draw(ROOT), "run python -m tests.draw_packages"


def test_the_picture_leaves_out_what_follows():
    """An arrow that follows from two others is not drawn dark; rows hang from their importers."""
    arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert without_implied(arrows) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert rows(arrows) == {"a": 2, "b": 1, "c": 0, "d": 1}
