"""The client of docs/deploy.md drives the page's robot, which is MuJoCo C."""

import ast
import json
import shutil
import sys

import mujoco
import numpy as np

from gpusim_rl.deploy import runtime
from tests.command_lines import run_process
from tests.docs.examples import files
from tests.simulated_robot import Simulated


def test_the_client_of_the_docs(trained, tmp_path):
    """Copied from the page, it moves the robot along the path of `runtime.py`, and needs little."""
    for name, text in files("docs/deploy.md").items():
        text = text.replace("data.time < 5", "data.time < 1")
        (tmp_path / name).write_text(text.replace("{data.qpos[0]:.2f}", "{data.qpos.tolist()}"))
    shutil.copy(trained / "policy.onnx", tmp_path)
    text = (tmp_path / "client.py").read_text()
    imports = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(x) for x in imports] == [
        *("import json", "import time", "import numpy as np", "import onnxruntime", "import robot")
    ]
    assert len(text.splitlines()) <= 34
    done = run_process(sys.executable, "client.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    twin = Simulated(policy := runtime.Policy(trained / "policy.onnx"))
    twin.model.opt = mujoco.MjModel.from_xml_string(policy.mjcf).opt
    for i, line in enumerate(done.stdout.splitlines(), 1):
        twin.send(policy.act(runtime.readings(policy, twin.data), [0.5, 0.0, 0.0]))
        time, _, qpos = line.removesuffix(" m forward").partition(" s: ")
        assert time == f"{0.02 * i:.2f}" and line.endswith(" m forward")
        np.testing.assert_allclose(json.loads(qpos), twin.data.qpos, atol=1e-5)
    assert i == 50 and np.abs(twin.data.qpos - twin.model.key_qpos[0]).max() > 0.01
