"""A stage for a model that has none: sky, patterned ground and lamps, in pictures alone.

The model that is simulated stays as it is. The sky and the pattern come from a small model of their
own, whose textures a picture's OpenGL context borrows. Ground and lamps are added to each scene.
"""

from typing import Any

import numpy as np

# The last color is that of the horizon, into which far ground fades.
STAGE = """
<mujoco>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.86 0.90 0.95" rgb2="0.42 0.55 0.72"
      width="256" height="256"/>
    <texture name="light" type="2d" builtin="checker" mark="edge" width="256" height="256"
      rgb1="0.63 0.67 0.72" rgb2="0.70 0.74 0.79" markrgb="0.80 0.83 0.87"/>
    <texture name="dark" type="2d" builtin="checker" mark="edge" width="256" height="256"
      rgb1="0.24 0.28 0.34" rgb2="0.29 0.33 0.40" markrgb="0.42 0.47 0.54"/>
    <material name="light" texture="light" texuniform="true"/>
    <material name="dark" texture="dark" texuniform="true"/>
  </asset>
</mujoco>"""
HORIZON = (0.86, 0.90, 0.95, 1.0)
ROLES = 10  # textures that a material may have
COLOR = 1  # the role of the one that colors it
GROUNDS = (0.67, 0.71, 0.76), (0.27, 0.31, 0.37)  # mean colors of its materials
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])  # of linear red, green and blue (Rec. 709)
PLANE = 0  # mujoco.mjtGeom.mjGEOM_PLANE
# direction, color: the key light from the front left, and the fill light from the other side
LAMPS = (
    ((0.35, -0.45, -0.82), (0.62, 0.60, 0.56)),
    ((-0.6, 0.7, -0.4), (0.22, 0.24, 0.28)),
)
AMBIENT, HEADLIGHT = 0.38, 0.2


class Stage:
    """What a model lacks of sky, ground and light.

    - `sky`: it has no sky of its own.
    - `planes`: its level ground without a material, as numbers of geoms.
    - `height`: where ground is added [m]; None if it has some.
    - `lamps`: it gets lamps, because it has none, or neither sky nor ground.

    Args:
        model: a mujoco.MjModel.
        data: a mujoco.MjData of a typical state, with kinematics.
        cell: side of a square of the pattern [m].
    """

    def __init__(self, model: Any, data: Any, cell: float):
        import mujoco

        self.model = model
        self.sky = mujoco.mjtTexture.mjTEXTURE_SKYBOX not in model.tex_type
        fixed, plane = model.geom_bodyid == 0, model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
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
        import mujoco

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
        lender.ntexture = 0  # they are freed with `context`, not with their lender
        lender.free()
        mujoco.mjr_restoreBuffer(context)  # the lender had bound a buffer of its own
        for i in range(stage.nmat):
            row = self.model.nmat + i
            context.mat_texid[ROLES * row + COLOR] = context.ntexture - stage.nmat + i
            context.mat_texuniform[row] = 1
            context.mat_texrepeat[2 * row : 2 * row + 2] = 0.5 / self.cell
        if self.sky:
            context.fogRGBA = HORIZON

    def dress(self, scene: Any) -> None:
        """Add what is missing to a scene that was updated. In place."""
        import mujoco

        geom_kind = int(mujoco.mjtObj.mjOBJ_GEOM)
        for geom in scene.geoms[: scene.ngeom]:
            if geom.objtype == geom_kind and geom.objid in self.planes:
                self.paint(geom)
        if self.height is not None:
            geom = scene.geoms[scene.ngeom]
            kind, color = mujoco.mjtGeom.mjGEOM_PLANE, np.ones(4, np.float32)
            place = np.array([0.0, 0.0, self.height])
            mujoco.mjv_initGeom(geom, kind, np.zeros(3), place, np.eye(3).ravel(), color)
            self.paint(geom)
            scene.ngeom += 1
        if self.lamps:
            self.add_lamps(scene)

    def paint(self, geom: Any) -> None:
        """Give a geom of a scene the pattern of the stage's ground. In place."""
        geom.matid, geom.rgba[:] = self.material, 1
        geom.specular = geom.shininess = geom.reflectance = 0.0

    def add_lamps(self, scene: Any) -> None:
        """Replace the lights of a scene by ours. In place."""
        import mujoco

        lamps = [x for x in scene.lights[: scene.nlight] if x.headlight][:1]
        for light in lamps:
            light.ambient[:], light.diffuse[:], light.specular[:] = AMBIENT, HEADLIGHT, 0.1
        scene.nlight = len(lamps) + len(LAMPS)
        for i, (direction, color) in enumerate(LAMPS, len(lamps)):
            light = scene.lights[i]
            light.type, light.headlight = int(mujoco.mjtLightType.mjLIGHT_DIRECTIONAL), 0
            light.dir[:], light.diffuse[:] = direction / np.linalg.norm(direction), color
            light.pos[:] = -10 * np.array(direction)
            light.ambient[:], light.specular[:] = 0, 0.3 if i == len(lamps) else 0
            light.castshadow = int(i == len(lamps))


def colors(model: Any) -> np.ndarray:
    """(ngeom, 4) the color of each geom, that of its material if it has one."""
    rgba, has = model.geom_rgba.copy(), model.geom_matid >= 0
    rgba[has] = model.mat_rgba[model.geom_matid[has]]
    return rgba.clip(0, 1)


def contrast(color: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(…,) the contrast ratio of two colors (…, 3), 1 to 21 (WCAG 2.2)."""
    light = [(np.power(x, 2.2) @ LUMINANCE) + 0.05 for x in (color, other)]
    return np.maximum(*light) / np.minimum(*light)


def choose_ground(model: Any) -> int:
    """The number of the stage's material from which the robot stands out more."""
    rgba = colors(model)
    solid = (model.geom_type != PLANE) & (model.geom_bodyid > 0) & (model.geom_group < 3)
    weight = np.where(solid, model.geom_rbound**2 * rgba[:, 3], 0)
    scores = [weight @ np.log(contrast(rgba[:, :3], np.array(x))) for x in GROUNDS]
    return int(np.argmax(scores))


def ground_height(model: Any, data: Any) -> float:
    """Where ground belongs that a model does not have [m]: below all geoms, and not above 0."""
    frames = data.geom_xmat.reshape(-1, 3, 3)
    center = data.geom_xpos[:, 2] + np.einsum("nj,nj->n", frames[:, 2], model.geom_aabb[:, :3])
    half = np.einsum("nj,nj->n", np.abs(frames[:, 2]), model.geom_aabb[:, 3:])
    return float((center - half).min(initial=0.0))
