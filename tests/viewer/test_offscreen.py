"""Off-screen rendering works without a display and without a variable to set."""

import shutil
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest
from mujoco.rendering.classic import gl_context

from gpusim_rl.envs import command_columns as target
from gpusim_rl.viewer import offscreen
from tests.command_lines import environment, run_process

BALL = "<mujoco><worldbody><light pos='0 0 3'/><geom size='1' rgba='1 0 0 1'/></worldbody></mujoco>"
RENDER = f"""
from gpusim_rl.viewer.offscreen import Camera
import mujoco
model = mujoco.MjModel.from_xml_string("{BALL}")
camera = Camera(model, 48, 64)
assert camera([]).std() > 1
"""
RENDER_WITH_MUJOCO = f"""
import mujoco
model = mujoco.MjModel.from_xml_string("{BALL}")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 48, 64)
renderer.update_scene(data)
assert renderer.render().std() > 1
"""
EXPORT_AND_COMPILE = """
import torch
net = torch.nn.Linear(3, 2)
x = torch.ones(4, 3)
torch.onnx.export(net, (x,), "net.onnx", dynamo=True, verbose=False)
f = torch.compile(lambda x: torch.sin(x) * 2 + x.sum(0))
assert torch.allclose(f(x), torch.sin(x) * 2 + x.sum(0))
"""
TRY_TWICE = f"""
from gpusim_rl.viewer.offscreen import Camera
import mujoco
model = mujoco.MjModel.from_xml_string("{BALL}")
for _ in range(2):
    try:
        Camera(model, 48, 64)
    except ValueError as error:
        print(error)
"""


def run(script: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a user's script in a process of its own, without a display."""
    (cwd / "script.py").write_text(script)
    env = environment(cwd / "home", **settings)
    return run_process(sys.executable, "script.py", cwd=cwd, env=env, timeout=240)


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
@pytest.mark.parametrize("first", ["ours", "mujoco's and ours"])
def test_render_then_export_then_compile(tmp_path, first):
    """And render again: it ends well, also after MuJoCo's own renderer."""
    mine = RENDER_WITH_MUJOCO if first != "ours" else ""
    settings = {"MUJOCO_GL": "egl"} if mine else {}
    done = run(mine + RENDER + EXPORT_AND_COMPILE + RENDER, tmp_path, **settings)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_that_only_renders_loads_no_torch(tmp_path):
    """Rendering imports neither torch nor triton."""
    check = "import sys\nassert not {'torch', 'triton'} & set(sys.modules)\n"
    done = run(RENDER + check, tmp_path, block="torch")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "settings",
    [
        {"MUJOCO_GL": "glfw"},
        {"MUJOCO_GL": "glfw", "DISPLAY": ":99"},
        {"MUJOCO_GL": "disable"},
        {"hide": "EGL OSMesa"},
        {"hide": "EGL OSMesa", "DISPLAY": ":99"},
        {"MUJOCO_GL": "egl", "__EGL_VENDOR_LIBRARY_DIRS": "/nowhere"},
    ],
    ids=lambda settings: " ".join(settings.values()),
)
def test_without_opengl_every_attempt_is_an_error(tmp_path, settings):
    """Where nothing renders, each attempt is one line that says what to install. None aborts."""
    done = run(TRY_TWICE, tmp_path, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(offscreen.NO_GL in line for line in lines)


def test_the_choice_of_a_backend(monkeypatch):
    """MUJOCO_GL wins; else EGL comes before OSMesa, and last a window, if there is a display."""
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)

    def chosen(*libraries: str) -> str:
        find = {name: name for name in libraries}.get
        monkeypatch.setattr(offscreen.ctypes.util, "find_library", find)
        return offscreen.choose_backend()

    assert (chosen("EGL", "OSMesa"), chosen("OSMesa")) == ("egl", "osmesa")
    with pytest.raises(ValueError, match="no off-screen OpenGL"):
        chosen()
    monkeypatch.setenv("DISPLAY", ":0")
    assert (chosen("EGL"), chosen()) == ("egl", "glfw")
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    assert chosen("EGL") == "osmesa"
    monkeypatch.setenv("MUJOCO_GL", "on")
    assert chosen("EGL") == ""


def test_a_renderer_of_the_user_keeps_its_backend():
    """After we have rendered, mujoco.Renderer has the class of contexts that it had before."""
    before = gl_context.GLContext
    model = mujoco.MjModel.from_xml_string(BALL)
    model.vis.global_.offwidth = 32
    camera = offscreen.Camera(model, 48, 64)
    picture = camera(np.zeros(0))
    camera.close()
    assert picture.shape == (48, 64, 3) and picture.dtype == np.uint8 and picture.std() > 1
    assert gl_context.GLContext is before


@pytest.mark.parametrize("software", [True, False])
def test_shadows_only_where_a_gpu_draws(monkeypatch, software):
    """Without a GPU, pictures have neither shadows nor reflections nor smooth edges."""
    monkeypatch.setattr(offscreen, "check_context", lambda context_class: software)
    model = mujoco.MjModel.from_xml_string(BALL)
    before = model.vis.quality.offsamples
    camera = offscreen.Camera(model, 48, 64)
    flags = mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION
    drawn = [bool(camera.renderer.scene.flags[flag]) for flag in flags]
    camera.close()
    assert drawn == 2 * [not software] and before > 0
    assert model.vis.quality.offsamples == (0 if software else before)


def test_software_is_recognized():
    """The context of this machine says whether it draws on the processor."""
    offscreen.check_context.cache_clear()
    context = offscreen.load_backend()
    software = offscreen.check_context(context)
    probe = context(8, 8)
    probe.make_current()
    from OpenGL import GL

    name = GL.glGetString(GL.GL_RENDERER).decode()
    probe.free()
    assert software == ("llvmpipe" in name or "softpipe" in name or "swrast" in name), name


def test_a_view_of_what_does_not_move():
    """A model without joints, or whose first joint moves no geom, is seen as a whole."""
    joint = "<body><freejoint/><inertial pos='0 0 0' mass='1' diaginertia='1 1 1'/></body>"
    about = {"units": ["m/s"] * 2, "trained": {"low": [-1, -1], "high": [1, 1]}}
    for moved in ("", joint):
        model = mujoco.MjModel.from_xml_string(BALL.replace("<geom", f"{moved}<geom"))
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        view = offscreen.whole(model, data)
        assert view.distance > 1 and view.azimuth == 215
        arrow = target.command_arrow(about, np.ones(2), data, 1.0)
        assert (arrow is None) == (not moved)
