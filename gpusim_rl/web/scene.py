"""A rollout on the web page: its robots, their targets and their ground."""

import math
from functools import partial

import mujoco
import numpy as np
import trimesh
import viser
from mjviser.conversions import group_geoms_by_visual_compat, merge_geoms

from gpusim_rl.envs.command_columns import command_arrow
from gpusim_rl.play.rollouts import Rollout
from gpusim_rl.robots.free_bodies import robot_joint
from gpusim_rl.viewer.ghost import COLOR, OPACITY
from gpusim_rl.viewer.offscreen import VISIBLE_GROUPS, make_stage, whole
from gpusim_rl.viewer.pose import set_pose
from gpusim_rl.viewer.stage import choose_ground, colors, sky

BOX, PLANE = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_PLANE
SMOOTH = 0.15  # share of the way that the camera goes to the robot in each picture
SHADING = 1.0  # brightness of a robot on the page: its light comes from all sides
ORANGE = (255, 178, 0)
# of the pale and of the dark ground, and of the lines on it
GROUNDS = ((205, 210, 218), (51, 61, 79)), ((170, 177, 188), (87, 100, 117))


class Scene:
    """Worlds of a model on the page, each at a place of its own.

    A body's geoms are one mesh, drawn once for each world. Boxes that are fixed to the world are
    drawn one by one, since rough ground moves them.

    root: name of the scene's root, such as `/a`. ground: whether the model's planes are drawn.
    """

    def __init__(self, server: viser.ViserServer, root: str, rollout: Rollout, ground: bool = True):
        self.scene, self.root, self.rollout, self.ground = server.scene, root, rollout, ground
        model, n = rollout.model, rollout.worlds
        self.model, self.data = model, mujoco.MjData(model)
        first = robot_joint(model)
        self.tracked = 0 if first is None else int(model.jnt_bodyid[first])
        rollout.show_world(0)
        set_pose(self.data, rollout.pose()[0])
        mujoco.mj_kinematics(model, self.data)
        mujoco.mj_comPos(model, self.data)
        view = whole(model, self.data)
        self.reach, self.center = view.distance / 2.5, view.lookat.copy()  # [m]
        self.frame = self.scene.add_frame(root, show_axes=False)
        visible = (model.geom_group < VISIBLE_GROUPS) & (colors(model)[:, 3] > 0)
        drawn: list[int] = np.flatnonzero(visible).tolist()
        fixed = [g for g in drawn if model.geom_bodyid[g] == 0]
        self.boxes = [g for g in fixed if model.geom_type[g] == BOX]
        self.places = grid(n, self.spacing())
        self.meshes: list[tuple[int, viser.BatchedGlbHandle]] = []  # (body, handle)
        for body in range(model.nbody):
            geoms = [g for g in drawn if model.geom_bodyid[g] == body and g not in self.boxes]
            self.add_body(body, geoms)
        self.ghosts = self.add_ghosts(drawn) if rollout.ghost() is not None else []
        stage = make_stage(model, self.data)
        if ground and stage.height is not None:
            level = np.array([1.0, 0.0, 0.0, 0.0])
            self.add_ground("ground", np.array([0, 0, stage.height]), level)
        self.scene.set_background_image(sky(), format="png")
        self.box_handle = self.add_boxes() if self.boxes else None
        shares = {"shaft_radius": 0.03, "head_radius": 0.07, "head_length": 0.12}
        sizes = {name: share * self.reach for name, share in shares.items()}
        points = np.zeros((1, 2, 3))
        self.arrow = self.scene.add_arrows(
            f"{root}/command", points, ORANGE, visible=False, **sizes
        )
        self.offset = -self.seen(0)

    def place(self, first: np.ndarray) -> None:
        """Let the first world stand at (2,) [m], and the others as far from it as before."""
        self.places[:, :2] += first - self.places[0, :2]

    def spacing(self) -> float:
        """Distance of neighboring worlds [m]."""
        model, ground = self.model, 0.0
        for g in self.boxes:
            ground = max(ground, *(abs(model.geom_pos[g, :2]) + model.geom_size[g, :2]))
        return max(2.5 * self.reach, 2.0 * ground)

    def add_body(self, body: int, geoms: list[int]) -> None:
        """Add the geoms of a body. ValueError if one has a shape that cannot be drawn."""
        model, n = self.model, self.rollout.worlds
        for g in (g for g in geoms if self.ground and model.geom_type[g] == PLANE):
            turn = np.zeros(4)
            mujoco.mju_mat2Quat(turn, self.data.geom_xmat[g])
            self.add_ground(f"plane{g}", self.data.geom_xpos[g], turn)
        solid = [g for g in geoms if model.geom_type[g] != PLANE]
        for i, group in enumerate(group_geoms_by_visual_compat(model, solid)):
            handle = self.scene.add_batched_meshes_trimesh(
                f"{self.root}/body{body}/{i}",
                merge_geoms(model, group),
                batched_wxyzs=np.tile([1.0, 0, 0, 0], (n, 1)),
                batched_positions=np.zeros((n, 3)),
                lod="off",
            )
            self.meshes.append((body, handle))

    def add_ghosts(self, drawn: list[int]) -> list[tuple[int, viser.MeshHandle]]:
        """Add the geoms of each body that moves once more, translucent: (body, handle)."""
        model, color = self.model, np.array(COLOR) * 255
        bodies = [body for body in range(model.nbody) if model.body_weldid[body]]
        geoms = {body: [g for g in drawn if model.geom_bodyid[g] == body] for body in bodies}
        meshes = {body: merge_geoms(model, group) for body, group in geoms.items() if group}
        add = partial(self.scene.add_mesh_simple, color=color, opacity=OPACITY, cast_shadow=False)
        return [
            (body, add(f"{self.root}/ghost{body}", mesh.vertices, mesh.faces))
            for body, mesh in meshes.items()
        ]

    def draw_ghost(self) -> None:
        """Draw where the first world's robot should be now."""
        self.data.qpos[:] = self.rollout.ghost()
        mujoco.mj_kinematics(self.model, self.data)
        for body, handle in self.ghosts:
            send(handle, "position", self.data.xpos[body] + self.places[0])
            send(handle, "wxyz", self.data.xquat[body])

    def add_ground(self, name: str, place: np.ndarray, turn: np.ndarray) -> None:
        """Add endless ground at a place (3,) [m], turned by a unit quaternion (4,): the one from
        which the robot stands out more.
        """
        plane, line = (shades[choose_ground(self.model, SHADING)] for shades in GROUNDS)
        self.scene.add_grid(
            f"{self.root}/{name}",
            infinite_grid=True,
            fade_distance=50.0,
            cell_size=0.25 if self.reach < 2 else 0.5,
            plane_color=plane,
            cell_color=line,
            section_color=line,
            plane_opacity=1.0,
            shadow_opacity=0.25,
            position=place,
            wxyz=turn,
        )

    def add_boxes(self) -> viser.BatchedMeshHandle:
        """Add the boxes that are fixed to the world, those of all worlds as one batch."""
        unit, count = trimesh.creation.box(), len(self.boxes) * self.rollout.worlds
        rgb = (255 * colors(self.model)[self.boxes, :3]).astype(np.uint8)
        return self.scene.add_batched_meshes_simple(
            f"{self.root}/boxes",
            unit.vertices,
            unit.faces,
            batched_wxyzs=np.tile([1.0, 0, 0, 0], (count, 1)),
            batched_positions=np.zeros((count, 3)),
            batched_scales=np.ones((count, 3)),
            batched_colors=np.tile(rgb, (self.rollout.worlds, 1)),
            flat_shading=True,
            lod="off",
        )

    def seen(self, world: int) -> np.ndarray:
        """(3,) the point that a camera follows in a world, of `self.data` [m]."""
        return self.data.xpos[self.tracked] + self.places[world]

    def draw(self, last: int, command: np.ndarray | None) -> None:
        """Draw all worlds as they are now, and a command (n,) over the robot of `last`."""
        n, model, data, boxes = self.rollout.worlds, self.model, self.data, self.boxes
        pos, quat = np.zeros((n, model.nbody, 3)), np.zeros((n, model.nbody, 4))
        places, turns, sizes = (np.zeros((n, len(boxes), k)) for k in (3, 4, 3))
        poses = self.rollout.pose()
        if self.ghosts:
            self.draw_ghost()
        for world in sorted(range(n), key=lambda world: world == last):
            self.rollout.show_world(world)
            set_pose(data, poses[world])
            mujoco.mj_kinematics(model, data)
            pos[world], quat[world] = data.xpos + self.places[world], data.xquat
            places[world] = data.geom_xpos[boxes] + self.places[world]
            for turn, g in zip(turns[world], boxes, strict=True):
                mujoco.mju_mat2Quat(turn, data.geom_xmat[g])
            sizes[world] = 2 * model.geom_size[boxes]
        for body, handle in self.meshes:
            send(handle, "batched_positions", pos[:, body])
            send(handle, "batched_wxyzs", quat[:, body])
        if self.box_handle:
            send(self.box_handle, "batched_positions", places.reshape(-1, 3))
            send(self.box_handle, "batched_wxyzs", turns.reshape(-1, 4))
            send(self.box_handle, "batched_scales", sizes.reshape(-1, 3))
        self.point(last, command)

    def follow(self, world: int | None) -> None:
        """Move the scene so that a world's robot, which was drawn last, stays in the center.

        None: so that the scene stands still, with all places around its center.
        """
        x, y, _ = self.places.mean(0)
        goal = -np.array([x, y, self.center[2]]) if world is None else -self.seen(world)
        far = np.linalg.norm(goal - self.offset) > 4 * self.reach  # it began anew elsewhere
        self.move(goal if far else self.offset + SMOOTH * (goal - self.offset))

    def move(self, offset: np.ndarray) -> None:
        """Move the scene to an offset (3,) [m]."""
        self.offset = offset
        send(self.frame, "position", offset)

    def point(self, world: int, command: np.ndarray | None) -> None:
        """Draw the command as an arrow over the robot of a world, if it is a velocity."""
        description, arrow = self.rollout.description, None
        if command is not None:
            arrow = command_arrow(description, command, self.data, self.reach)
        if arrow is not None:
            send(self.arrow, "points", (np.stack(arrow) + self.places[world])[None])
        if self.arrow.visible != (arrow is not None):
            self.arrow.visible = arrow is not None

    def remove(self) -> None:
        """Take the scene off the page."""
        self.frame.remove()


def send(handle: viser.SceneNodeHandle, name: str, value: np.ndarray) -> None:
    """Set a property of a thing on the page, unless it has this value."""
    value = value.astype(np.float32)
    if not np.array_equal(getattr(handle, name), value):
        setattr(handle, name, value)


def grid(n: int, spacing: float) -> np.ndarray:
    """(n, 3) places in a square [m], the first at zero."""
    side = math.ceil(math.sqrt(n))
    rows, columns = np.divmod(np.arange(n), side)
    return np.stack([-spacing * rows, spacing * columns, np.zeros(n)], 1)
