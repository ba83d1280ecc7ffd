"""Off-screen rendering: choose an OpenGL backend that works on this machine, and take pictures.

MuJoCo chooses its backend when it is imported: the one that MUJOCO_GL names, else GLFW, which needs
a display. Here the choice is made when something is rendered, so that no variable has to be set.
"""

import contextlib
import ctypes.util
import functools
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.core.free_bodies import robot_joint

NO_GL = (
    "no display and no off-screen OpenGL: install EGL (apt install libegl1 libgl1-mesa-dri)"
    " or OSMesa (apt install libosmesa6)"
)
ABOVE = -50.0  # degrees: how a camera from above looks down
LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # MuJoCo's backends that need no display


def has_display() -> bool:
    """Whether a window can open here."""
    return bool(
        sys.platform in ("darwin", "win32")
        or os.environ.get("DISPLAY")
        or os.environ.get("WAYLAND_DISPLAY")
    )


def choose_backend() -> str:
    """Name of the OpenGL backend to render with; "" leaves the choice to MuJoCo.

    MUJOCO_GL wins where it is set, also after MuJoCo was imported. Otherwise EGL comes first, then
    OSMesa, then a hidden window. Raises ValueError where there is none.
    """
    backend_name = os.environ.get("MUJOCO_GL", "").lower().strip()
    if sys.platform != "linux" or backend_name:
        return backend_name if backend_name in (*LIBRARIES, "glfw") else ""
    for backend, library in LIBRARIES.items():
        if ctypes.util.find_library(library):
            return backend
    if not has_display():
        raise ValueError(NO_GL)
    return "glfw"


def load_backend() -> type:
    """MuJoCo's class of OpenGL contexts for the chosen backend. ValueError where there is none."""
    backend = choose_backend()
    try:
        from mujoco.rendering.classic import gl_context

        module = import_module(f"mujoco.{backend}") if backend else gl_context
        return module.GLContext
    except Exception as error:  # Each backend raises errors of its own.
        raise ValueError(f"{NO_GL} ({error})") from None


@contextlib.contextmanager
def quiet_glfw() -> Iterator[None]:
    """Hide the warnings of GLFW. An error in one line replaces them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def check_context(context_class: type) -> bool:
    """Open a context and close it again. Returns whether it draws without a GPU, on the processor.

    Raises an error of the backend's if that fails.
    GLFW only warns when it fails, and MuJoCo then renders without a context. The first attempt is
    an error that leaves MuJoCo's loader of OpenGL locked, and the second one aborts the process.
    """
    with quiet_glfw():
        context = context_class(64, 64)
        context.make_current()
        if context_class.__module__ == "mujoco.glfw":
            import glfw

            if not glfw.get_current_context():
                raise RuntimeError("GLFW opens no window")
        from OpenGL import GL

        name = (GL.glGetString(GL.GL_RENDERER) or b"").lower()
        context.free()
    return any(software in name for software in (b"llvmpipe", b"softpipe", b"swrast"))


# Why: docs/decisions/0054-opengl-and-triton.md
def load_triton() -> None:
    """Load triton's library, where triton is installed, before OpenGL is used.

    Mesa's renderer and triton each bring an LLVM. Mesa's is visible to every library that is loaded
    later. Triton would mix it with its own, and torch.compile would end in a segmentation fault.
    Triton itself is not imported: its library alone takes 0.05 s, the package 0.6 s.
    """
    if sys.platform != "linux" or "triton" in sys.modules:
        return
    spec = importlib.util.find_spec("triton")
    mode = os.RTLD_NOW
    if "libLLVM" in Path("/proc/self/maps").read_text():
        mode |= os.RTLD_DEEPBIND  # Something was rendered before: triton's own LLVM comes first.
    for folder in (spec and spec.submodule_search_locations) or ():
        for library in Path(folder, "_C").glob("libtriton*.so"):
            with contextlib.suppress(OSError):  # Importing triton will say what is wrong with it.
                ctypes.CDLL(str(library), mode=mode)


def make_renderer(model: Any, height: int, width: int) -> Any:
    """A mujoco.Renderer with the chosen backend. ValueError, in one line, where none works.

    Without a GPU, shadows, reflections and smooth edges are left out: they take most of the time.
    """
    context_class = load_backend()
    load_triton()
    import mujoco
    from mujoco.rendering.classic import gl_context

    screen = model.vis.global_
    screen.offwidth, screen.offheight = max(width, screen.offwidth), max(height, screen.offheight)
    missing = object()
    before = getattr(gl_context, "GLContext", missing)
    try:
        fast = check_context(context_class)
        # MuJoCo chose a backend as it was imported, perhaps one that does not work here
        gl_context.GLContext = context_class  # where mujoco.Renderer looks it up
        if fast:
            model.vis.quality.offsamples = 0
        renderer = mujoco.Renderer(model, height, width)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            renderer.scene.flags[flag] &= not fast
        return renderer
    except Exception as error:  # Each backend raises errors of its own.
        raise ValueError(f"{NO_GL} ({error})") from None
    finally:
        if before is missing:
            vars(gl_context).pop("GLContext", None)
        else:
            gl_context.GLContext = before


class Camera:
    """Pictures of a model.

    Args:
        model: a mujoco.MjModel.
        height: of the pictures, in pixels.
        width: of the pictures, in pixels.
        view: a camera of the model; `free`, MuJoCo's free camera; or `above`, which looks down at
            what moves, wherever it is. Unless given, it is the camera `track` if the model has one,
            else `free`.

    Raises ValueError where there is no off-screen OpenGL, or no such view.
    """

    def __init__(self, model: Any, height: int, width: int, view: str | None = None):
        import mujoco

        names = [model.camera(i).name for i in range(model.ncam)]
        view = view or ("track" if "track" in names else "free")
        if view not in (*names, "free", "above"):
            choices = ", ".join(filter(None, (*names, "free", "above")))
            raise ValueError(f"camera={view}: choose one of {choices}")
        self.renderer = make_renderer(model, height, width)
        self.model, self.data, self.above = model, mujoco.MjData(model), view == "above"
        self.camera = names.index(view) if view in names else -1
        if self.above:
            mujoco.mj_kinematics(model, self.data)
            mujoco.mj_comPos(model, self.data)
            self.camera = whole(model, self.data)
            self.camera.elevation, self.camera.distance = ABOVE, 2 * self.camera.distance

    def __call__(self, qpos: np.ndarray) -> np.ndarray:
        """The picture (height, width, 3) uint8 of a state qpos (nq,)."""
        import mujoco

        self.data.qpos[:] = qpos
        mujoco.mj_forward(self.model, self.data)
        if self.above and self.model.njnt:
            body = self.model.jnt_bodyid[robot_joint(self.model)]
            self.camera.lookat[:] = self.data.subtree_com[body]
        self.renderer.update_scene(self.data, self.camera)
        return self.renderer.render()

    def position(self, body: int | None) -> np.ndarray | None:
        """Where a body is in the last picture (3,) [m]; None of none."""
        return None if body is None else self.data.xpos[body].copy()

    def close(self) -> None:
        """Free the OpenGL context."""
        self.renderer.close()


def whole(model: Any, data: Any) -> Any:
    """A free camera that sees the whole robot from its front left.

    It sees all of a model without joints, or whose robot's first joint moves no geom.
    """
    import mujoco

    view = mujoco.MjvCamera()
    first = robot_joint(model)
    bodies = [] if first is None else [model.jnt_bodyid[first]]
    moving = np.isin(model.body_rootid[model.geom_bodyid], model.body_rootid[bodies])
    if moving.any():
        view.lookat[:] = data.subtree_com[bodies[0]] * [1, 1, 0.8]
        away = np.linalg.norm(data.geom_xpos[moving] - view.lookat, axis=1)
        view.distance = 2.5 * float((away + model.geom_rbound[moving]).max())
    else:
        mujoco.mjv_defaultFreeCamera(model, view)
    view.azimuth, view.elevation = 215.0, -20.0
    return view
