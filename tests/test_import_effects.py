"""Importing the package changes how long torch's threads wait in a loop, and nothing else."""

import pytest

from tests.command_lines import run_python

PROGRAM = """
import ast, importlib, json, logging, os, signal, sys, warnings
from pathlib import Path

def top_level(node):
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield child
            yield from top_level(child)

OURS = ("gpusim_rl", "tasks")
files = sorted(Path("gpusim_rl").rglob("*.py"))
ours = [".".join(f.with_suffix("").parts).removesuffix(".__init__") for f in files]
others = set()
for file in files:
    for node in top_level(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            others |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if node.module.split(".")[0] in OURS:
                continue
            others |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
missing = set()
for name in sorted(others):
    try:
        importlib.import_module(name)
    except ImportError:  # a package that is not installed, or a name within a module
        missing.add(name)

import mujoco, torch, warp

def process():
    return {
        "MuJoCo's warning hook": mujoco.get_mju_user_warning(),
        "stderr": os.fstat(2).st_ino,
        "threads of torch": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "precision": (torch.get_default_dtype(), torch.get_float32_matmul_precision()),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "environment": {**os.environ, "GOMP_SPINCOUNT": "5000"},
        "warnings": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "Warp": (warp._src.context.runtime, warp.config.log_level),
        "hooks": (sys.excepthook, sys.path_hooks[:], sys.stdout, sys.stderr),
        "directory": os.getcwd(),
    }

redirected = []
dup2 = os.dup2
os.dup2 = lambda *args, **kwargs: redirected.append(args) or dup2(*args, **kwargs)
before = process()
imported = []
for name in ours:
    try:
        importlib.import_module(name)
        imported.append(name)
    except ImportError as error:
        assert error.name in missing, error
after = process()
changed = [key for key in before if before[key] != after[key]]
print(json.dumps({"changed": changed, "redirected": redirected, "imported": len(imported)}))
"""


@pytest.mark.slow
def test_importing_the_package_has_no_side_effects():
    """On hooks, stderr, threads, signals, environment and filters."""
    done = run_python(PROGRAM)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert '"changed": [], "redirected": []' in done.stdout
    assert int(done.stdout.split()[-1].rstrip("}")) > 60


@pytest.mark.parametrize("given, expected", [(None, "5000"), ("30000", "30000")])
def test_threads_wait_briefly(monkeypatch, given, expected):
    """libgomp finds a short wait, or the one that is given, before torch is loaded."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if given:
        monkeypatch.setenv("GOMP_SPINCOUNT", given)
    # as a library reads it, at the first import of torch
    program = "import gpusim_rl, os, sys; assert 'torch' not in sys.modules; os.system('env')"
    assert f"GOMP_SPINCOUNT={expected}\n" in run_python(program).stdout
