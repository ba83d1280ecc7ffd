"""A stage for a model that has none: sky, patterned ground and lamps, in pictures alone.

The model that is simulated stays as it is. The sky and the pattern come from a small model of their
own, whose textures a picture's OpenGL context borrows. Ground and lamps are added to each scene.
"""

from typing import Any

import mujoco
import numpy as np
from mujoco import MjData, MjModel, MjvScene

# The last color is that of the horizon, into which far ground fades.
STAGE = """
<mujoco>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.86 0.90 0.95" rgb2="0.42 0.55 0.72"
      width="256" height="256"/>
    <texture name="light" type="2d" builtin="checker" mark="edge" width="256" height="256"
      rgb1="0.67 0.71 0.76" rgb2="0.74 0.78 0.83" markrgb="0.84 0.87 0.91"/>
    <texture name="dark" type="2d" builtin="checker" mark="edge" width="256" height="256"
      rgb1="0.18 0.22 0.28" rgb2="0.22 0.26 0.33" markrgb="0.34 0.39 0.46"/>
    <material name="light" texture="light" texuniform="true"/>
    <material name="dark" texture="dark" texuniform="true"/>
  </asset>
  <worldbody><geom type="plane" size="0 0 1" material="light"/></worldbody>
</mujoco>"""
HORIZON = (0.86, 0.90, 0.95, 1.0)
HAZE = np.array([0.64, 0.72, 0.83])  # of the gradient's middle
ROLES = 10  # textures that a material may have
COLOR = 1  # the role of the one that colors it
GROUNDS = (0.71, 0.75, 0.80), (0.20, 0.24, 0.31)  # mean colors of its materials
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])  # of linear red, green and blue (Rec. 709)
TILES = 12  # in a window: from the robot to the edge of its ground
SHADING = 0.7  # brightness of a robot's sides, in that of level ground under the same lamps
PLANE = mujoco.mjtGeom.mjGEOM_PLANE
# direction, color: the key light from the front left, and the fill light from the other side
LAMPS = (
    ((0.35, -0.45, -0.82), (0.62, 0.60, 0.56)),
    ((-0.6, 0.7, -0.4), (0.22, 0.24, 0.28)),
)
AMBIENT, HEADLIGHT = 0.38, 0.2


def horizon_color(model: "MjModel") -> np.ndarray:
    """(3,) the color of the sky at the horizon: of the model's own sky, or of the stage's."""
    import mujoco

    skies = np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)
    if not len(skies):
        return HAZE
    first, width, channels = (
        x[skies[0]] for x in (model.tex_adr, model.tex_width, model.tex_nchannel)
    )
    # faces lie one above the other: the middle row of the first, which is at a side
    row = model.tex_data[first:][width // 2 * width * channels :][: width * channels]
    return row.reshape(-1, channels)[:, :3].mean(0) / 255


class Stage:
    """What a model lacks of sky, ground and light.

    - `sky`: it has no sky of its own.
    - `planes`: its level ground without a material, as numbers of geoms.
    - `height`: where ground is added [m]; None if it has some.
    - `lamps`: it gets lamps, because it has none, or neither sky nor ground.

    data: of a typical state, with kinematics. cell: side of a square of the pattern [m].
    """

    def __init__(self, model: MjModel, data: MjData, cell: float):
        self.model, self.data = model, data
        self.sky = mujoco.mjtTexture.mjTEXTURE_SKYBOX not in model.tex_type
        fixed, plane = model.geom_bodyid == 0, model.geom_type == PLANE
        ground = fixed & (plane | (model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD))
        bare = ground & plane & (model.geom_matid < 0)
        self.planes = np.flatnonzero(bare)
        self.height = None if ground.any() else ground_height(model, data)
        patterned = ground.any() and not bare.any()
        self.lamps = not model.nlight or (self.sky and not patterned)
        self.material = model.nmat + choose_ground(model)
        self.cell = cell  # m

    def lend(self, context: Any) -> None:
        """Give the textures of the stage to a mujoco.MjrContext, which is current. In place."""
        stage = mujoco.MjModel.from_xml_string(STAGE)
        first = context.ntexture
        if first + stage.ntex > len(context.texture):
            return
        lender = mujoco.MjrContext(stage, mujoco.mjtFontScale.mjFONTSCALE_50)
        # without a sky of the model's own, ours comes first of all skies
        given = slice(0 if self.sky else 1, stage.ntex)
        for kind, texture in zip(lender.textureType[given], lender.texture[given], strict=True):
            context.texture[context.ntexture] = texture
            context.textureType[context.ntexture] = kind
            context.ntexture += 1
        # The lender has an endless plane, too: a number of a plane counts from the context's first.
        self.plane = lender.basePlane - context.basePlane
        # what is lent is freed with `context` or its OpenGL context, not with the lender
        lender.ntexture = lender.rangePlane = 0
        lender.free()
        mujoco.mjr_restoreBuffer(context)  # the lender had bound a buffer of its own
        for i in range(stage.nmat):
            row = self.model.nmat + i
            context.mat_texid[ROLES * row + COLOR] = context.ntexture - stage.nmat + i
            context.mat_texuniform[row] = 1
            context.mat_texrepeat[2 * row : 2 * row + 2] = 1 / self.cell  # squares
        if self.sky:
            context.fogRGBA = HORIZON

    def dress(self, scene: MjvScene) -> None:
        """Add what is missing to a scene that was updated. In place."""
        geom_kind = int(mujoco.mjtObj.mjOBJ_GEOM)
        for geom in scene.geoms[: scene.ngeom]:
            if geom.objtype == geom_kind and geom.objid in self.planes:
                self.paint(geom, self.data.geom_xpos[geom.objid])
        if self.height is not None:
            geom = scene.geoms[scene.ngeom]
            kind, color = mujoco.mjtGeom.mjGEOM_PLANE, np.ones(4, np.float32)
            place = np.array([*scene.camera[0].pos[:2], self.height])
            mujoco.mjv_initGeom(geom, kind, np.zeros(3), place, np.eye(3).ravel(), color)
            geom.size[:], geom.dataid = 0, self.plane
            geom.category = int(mujoco.mjtCatBit.mjCAT_STATIC)
            self.paint(geom, np.array([0.0, 0.0, self.height]))
            geom.objtype, geom.objid = int(mujoco.mjtObj.mjOBJ_UNKNOWN), -1
            geom.segid = scene.ngeom
            scene.ngeom += 1
        if self.lamps:
            self.add_lamps(scene)

    def paint(self, geom: Any, origin: np.ndarray) -> None:
        """Give a plane of a scene the pattern of the stage's ground. In place.

        MuJoCo moves an endless plane along with the camera. Here it moves by whole squares, so that
        the pattern stays where it is. `origin` is the plane's own place (3,) [m].
        """
        geom.matid, geom.rgba[:] = self.material, 1
        geom.specular = geom.shininess = geom.reflectance = 0.0
        axes, period = geom.mat.astype(float), 2 * self.cell
        steps = np.round(axes.T @ (geom.pos - origin) / period)
        geom.pos[:] = origin + axes @ (period * steps)

    def add_tiles(self, scene: MjvScene, data: MjData) -> None:
        """Add ground to the scene of a window, which takes no texture: a light and a dark tile in
        turn, around the robot of `data`, which has kinematics. In place.
        """
        height = self.height
        if len(self.planes):
            height = float(data.geom_xpos[self.planes[0], 2])
        if height is None:
            return
        # The tiles cover a plane of the model, on which the robot stands: so they lie just above.
        half, thick = np.array([self.cell / 2, self.cell / 2, 1e-3]), height - 1e-3 + 2e-4
        center = np.floor(data.subtree_com[0, :2] / self.cell)
        shift = np.stack(np.meshgrid(*[np.arange(-TILES, TILES + 1)] * 2), -1).reshape(-1, 2)
        for x, y in center + shift[np.linalg.norm(shift, axis=1) <= TILES]:
            place = np.array([x * self.cell, y * self.cell, thick])
            shade = GROUNDS[self.material - self.model.nmat]
            color = np.array([*shade, 1.0], np.float32) * (0.96 + 0.08 * ((x + y) % 2))
            color[3] = 1.0
            geom, box = scene.geoms[scene.ngeom], mujoco.mjtGeom.mjGEOM_BOX
            mujoco.mjv_initGeom(geom, box, half, place, np.eye(3).ravel(), color)
            geom.category = int(mujoco.mjtCatBit.mjCAT_STATIC)
            scene.ngeom += 1

    def brighten(self) -> None:
        """Raise the headlight of the model of a window, which takes no other lamps. In place."""
        if self.lamps:
            light = self.model.vis.headlight
            light.ambient[:], light.diffuse[:], light.specular[:] = AMBIENT, 0.55, 0.1

    def add_lamps(self, scene: MjvScene) -> None:
        """Replace the lights of a scene by ours. In place."""
        lamps = [x for x in scene.lights[: scene.nlight] if x.headlight][:1]
        for light in lamps:
            light.ambient[:], light.diffuse[:], light.specular[:] = AMBIENT, HEADLIGHT, 0.1
        scene.nlight = len(lamps) + len(LAMPS)
        for i, (direction, color) in enumerate(LAMPS, len(lamps)):
            light = scene.lights[i]
            light.type, light.headlight = int(mujoco.mjtLightType.mjLIGHT_DIRECTIONAL), 0
            ahead = np.array(direction)
            light.dir[:], light.diffuse[:] = ahead / np.linalg.norm(ahead), color
            light.pos[:] = -10 * ahead
            light.ambient[:], light.specular[:] = 0, 0.3 if i == len(lamps) else 0
            light.castshadow = int(i == len(lamps))


def sky() -> np.ndarray:
    """(256, 4, 3) uint8 the colors of the sky from the top of a picture to its horizon."""
    top, low = np.array([0.42, 0.55, 0.72]), np.array(HORIZON[:3])
    share = np.linspace(0, 1, 256)[:, None, None]
    return np.broadcast_to(255 * (top + share * (low - top)), (256, 4, 3)).astype(np.uint8)


def colors(model: MjModel) -> np.ndarray:
    """(ngeom, 4) the color of each geom, that of its material if it has one."""
    rgba, has = model.geom_rgba.copy(), model.geom_matid >= 0
    rgba[has] = model.mat_rgba[model.geom_matid[has]]
    return rgba.clip(0, 1)


def contrast(color: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(…,) the contrast ratio of two colors (…, 3), 1 to 21 (WCAG 2.2)."""
    light = [(np.power(x, 2.2) @ LUMINANCE) + 0.05 for x in (color, other)]
    return np.maximum(*light) / np.minimum(*light)


def choose_ground(model: MjModel, shading: float = SHADING) -> int:
    """The number of the stage's material from which the robot stands out more.

    shading: brightness of the robot, as a share of its colors'.
    """
    rgba = colors(model)
    solid = (model.geom_type != PLANE) & (model.geom_bodyid > 0) & (model.geom_group < 3)
    weight = np.where(solid, model.geom_rbound**2 * rgba[:, 3], 0)
    shaded = shading * rgba[:, :3]
    scores = [weight @ np.log(contrast(shaded, np.array(x))) for x in GROUNDS]
    return int(np.argmax(scores))


def ground_height(model: MjModel, data: MjData) -> float:
    """Where ground belongs that a model does not have [m]: below all geoms, and not above 0."""
    frames = data.geom_xmat.reshape(-1, 3, 3)
    center = data.geom_xpos[:, 2] + np.einsum("nj,nj->n", frames[:, 2], model.geom_aabb[:, :3])
    half = np.einsum("nj,nj->n", np.abs(frames[:, 2]), model.geom_aabb[:, 3:])
    return float((center - half).min(initial=0.0))
