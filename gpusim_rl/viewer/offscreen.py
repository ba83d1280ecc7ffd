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
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpusim_rl.robots.free_bodies import free_base, robot_joint
from gpusim_rl.viewer.edges import smooth_edges
from gpusim_rl.viewer.ghost import add_ghost
from gpusim_rl.viewer.pose import set_pose

if TYPE_CHECKING:
    from mujoco import MjData, MjModel, MjvCamera, Renderer

    from gpusim_rl.viewer.stage import Stage

NO_GL = (
    "no display and no off-screen OpenGL: install EGL (apt install libegl1 libgl1-mesa-dri)"
    " or OSMesa (apt install libosmesa6)"
)
ABOVE = -50.0  # degrees: how a camera from above looks down
STANDING, FLYING = 0.5, 0.24  # share of the picture's height that a robot takes
TALLEST, AIR = 0.6, 1.15  # a fixed camera steps back by `AIR` if more than this is taken
WIDEST = 0.6  # share of the picture's width that it takes at most
VISIBLE_GROUPS = 3  # MuJoCo's viewers show geoms of the groups 0, 1 and 2
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


@functools.cache
def check_context(context_class: type) -> bool:
    """Open a context and close it again. Returns whether it draws without a GPU, on the processor.

    GLFW only warns when it fails, and MuJoCo then renders without a context. The first attempt is
    an error that leaves MuJoCo's loader of OpenGL locked, and the second one aborts the process.
    """
    with warnings.catch_warnings(action="ignore"):  # of GLFW: an error replaces them
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


# Why: docs/decisions/pictures.md
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


def make_renderer(model: "MjModel", height: int, width: int) -> "Renderer":
    """A mujoco.Renderer with the chosen backend. ValueError, in one line, where none works.

    Without a GPU, shadows, reflections and smooth edges are left out: they take most of the time.
    """
    context_class = load_backend()
    load_triton()
    import mujoco
    from mujoco.rendering.classic import gl_context

    from gpusim_rl.viewer.stage import horizon_color  # it loads MuJoCo

    screen = model.vis.global_
    screen.offwidth, screen.offheight = max(width, screen.offwidth), max(height, screen.offheight)
    if (model.vis.rgba.haze == 1.0).all():  # MuJoCo's own white would be a bar above the ground
        model.vis.rgba.haze[:3] = horizon_color(model)
    before = {name: x for name, x in vars(gl_context).items() if name == "GLContext"}
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
        vars(gl_context).pop("GLContext", None)
        vars(gl_context).update(before)


class Camera:
    """Pictures of a model, in pixels. What it lacks of ground, sky and light is added to them.

    `view` is a camera of the model; `free`, MuJoCo's free camera; or `above`, which looks down at
    what moves, wherever it is. Unless given, a robot with a free base is followed, and framed by
    its size; others are seen by the camera `track` if there is one.

    Raises ValueError where there is no off-screen OpenGL, or no such view.
    """

    def __init__(self, model: "MjModel", height: int, width: int, view: str | None = None):
        import mujoco

        names = [model.camera(i).name for i in range(model.ncam)]
        if view not in (*names, "free", "above", None):
            choices = ", ".join(filter(None, (*names, "free", "above")))
            raise ValueError(f"camera={view}: choose one of {choices}")
        self.renderer = make_renderer(model, height, width)
        self.model, self.data = model, mujoco.MjData(model)
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, self.data, 0)
        mujoco.mj_forward(model, self.data)
        self.stage = make_stage(model, self.data)
        self.stage.lend(self.renderer._mjr_context)
        self.offset: np.ndarray | None = None  # of what is looked at from the robot's center [m]
        if view is None:
            self.camera, self.offset = framing(model, self.data, width / height)
        elif view == "above":
            self.camera, self.offset = whole(model, self.data), np.zeros(3)
            self.camera.elevation, self.camera.distance = ABOVE, 2 * self.camera.distance
        else:
            self.camera = names.index(view) if view in names else -1

    def __call__(self, pose: np.ndarray, ghost: np.ndarray | None = None) -> np.ndarray:
        """The picture (height, width, 3) uint8 of a pose, as `set_pose` takes it, and of a ghost's
        qpos (nq,)."""
        import mujoco

        set_pose(self.data, pose)
        mujoco.mj_forward(self.model, self.data)
        if self.offset is not None and self.model.njnt:
            body = self.model.jnt_bodyid[robot_joint(self.model)]
            self.camera.lookat[:] = self.data.subtree_com[body] + self.offset
        self.update_scene(self.camera)
        if ghost is not None:
            add_ghost(self.renderer.scene, self.model, ghost)
        return self.render()

    def update_scene(self, camera: "MjvCamera | int") -> None:
        """Make the scene of `data` as a camera sees it, on the stage."""
        self.renderer.update_scene(self.data, camera)
        self.stage.dress(self.renderer.scene)

    def render(self) -> np.ndarray:
        """The picture (height, width, 3) uint8 of the scene, with smooth edges."""
        picture = self.renderer.render()
        return picture if self.model.vis.quality.offsamples else smooth_edges(picture)

    def close(self) -> None:
        """Free the OpenGL context."""
        self.renderer.close()


def framing(
    model: "MjModel", data: "MjData", aspect: float
) -> tuple["MjvCamera | int", np.ndarray | None]:
    """A camera for films, and its offset from the center of a robot that it follows [m].

    A robot with a free base is followed; it is seen along the model's camera `track` if there is
    one. Others are seen by this camera, or stand still within the whole picture.

    data: of a typical state. aspect: width of the picture, in heights.
    """
    names = [model.camera(i).name for i in range(model.ncam)]
    track = names.index("track") if "track" in names else None
    first, view = robot_joint(model), whole(model, data)
    if first is None:
        return (view if track is None else track), None
    if track is not None:
        x, y, z = ahead = -data.cam_xmat[track].reshape(3, 3)[:, 2]
        view.elevation, view.azimuth = np.degrees([np.arcsin(z), np.arctan2(y, x)])
    low, high = bounds(model, data)
    deep, tall = float(np.linalg.norm((high - low)[:2])), float((high - low)[2])
    turn = np.radians(view.elevation)
    seen = tall * np.cos(turn) + deep * abs(np.sin(turn))  # m, from top to bottom
    opening = opening_of(model.vis.global_.fovy)
    moves = track is not None and model.body_weldid[model.cam_bodyid[track]] > 0
    if moves or free_base(model) is not None:
        share = FLYING if low[2] > deep else STANDING
        view.distance = max(seen / share, deep / WIDEST / aspect) / opening
        return view, (low + high) / 2 - data.subtree_com[model.jnt_bodyid[first]]
    if track is None:
        return view, None
    away = float(np.linalg.norm(data.cam_xpos[track] - view.lookat))
    height = opening_of(model.cam_fovy[track]) * away  # m, of the picture at the robot
    if seen <= TALLEST * height:
        return track, None
    view.lookat[:] = data.cam_xpos[track] + away * ahead
    view.distance = AIR * height / opening
    return view, None


def opening_of(fovy: float) -> float:
    """Height of what a camera sees, in distances from it, of its field of view [degrees]."""
    return 2 * float(np.tan(np.radians(fovy) / 2))


def make_stage(model: "MjModel", data: "MjData") -> "Stage":
    """The stage of a model, whose pattern fits the robot's size in a state `data`."""
    from gpusim_rl.viewer.stage import Stage

    radius = whole(model, data).distance / 2.5
    sides = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)  # m, of a square
    return Stage(model, data, min(sides, key=lambda x: abs(np.log(1.2 * radius / x))))


def bounds(model: "MjModel", data: "MjData") -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest corner (3,) of a box around the robot's visible geoms [m]."""
    root = model.body_rootid[model.jnt_bodyid[robot_joint(model)]]
    drawn = (model.body_rootid[model.geom_bodyid] == root) & (model.geom_group < VISIBLE_GROUPS)
    frames = data.geom_xmat[drawn].reshape(-1, 3, 3)
    center = data.geom_xpos[drawn] + np.einsum("nij,nj->ni", frames, model.geom_aabb[drawn, :3])
    half = np.einsum("nij,nj->ni", np.abs(frames), model.geom_aabb[drawn, 3:])
    if not drawn.any():
        place = data.subtree_com[root]
        return place - 0.5, place + 0.5
    return (center - half).min(0), (center + half).max(0)


def whole(model: "MjModel", data: "MjData") -> "MjvCamera":
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
