"""The feet of a quadruped: where each leg touches the ground."""

import mujoco
import numpy as np

from gpusim_rl.robots.bodies import SPHERE, RobotError, kinematics, locate, subtree, tip
from gpusim_rl.robots.quadruped.topology import Foot

SITE_RADIUS = 0.02  # m of the sphere that is added at a site
SITE_DISTANCE = 0.01  # m between a site and the sphere that it marks, at most


def find_foot(m: mujoco.MjModel, name: str | None, joint: str, new_name: str) -> Foot:
    """The foot of a leg: the farthest sphere, else the named site, else a new sphere at the
    farthest point from the knee `joint`.

    name: of the geom, site or body that is the foot or contains it. None: what the knee moves.
    new_name: of the foot's geom, if it has no name.
    """
    d = kinematics(m)
    knee, anchor = m.jnt_bodyid[m.joint(joint).id], d.xanchor[m.joint(joint).id]
    body, geom, site = locate(m, name) if name else (knee, -1, -1)
    if body not in subtree(m, knee):
        raise RobotError(f"robot.feet: {name!r} is not below the knee {joint!r}")
    bodies = subtree(m, body)
    geoms = [geom] if geom >= 0 else [g for g in range(m.ngeom) if m.geom_bodyid[g] in bodies]
    if site >= 0:
        geoms = [g for g in geoms if m.geom_type[g] == SPHERE]
        apart = np.linalg.norm(d.geom_xpos[geoms] - d.site_xpos[site], axis=1)
        geoms = [g for g, far in zip(geoms, apart, strict=True) if far < SITE_DISTANCE]
    elif not geoms:
        raise RobotError(
            f"robot.feet: the body {m.body(body).name!r} below {joint!r} has no geom: name a site"
        )
    tips = {g: tip(m, d, g, anchor) for g in geoms}
    reach = {g: float(np.linalg.norm(point - anchor)) for g, (point, _) in tips.items()}
    sphere = farthest_sphere(m, reach)
    if sphere >= 0:
        body, label = m.geom_bodyid[sphere], m.geom(sphere).name
        center, radius = d.geom_xpos[sphere], float(m.geom_size[sphere, 0])
    elif site >= 0:
        body, label = m.site_bodyid[site], m.site(site).name
        center, radius = d.site_xpos[site], SITE_RADIUS
    else:
        far = max(reach, key=lambda g: reach[g])
        body, label, (point, radius) = m.geom_bodyid[far], "", tips[far]
        radius = radius or 0.1 * reach[far]
        center = point - radius * (point - anchor) / reach[far]  # inside of the end
    pos = d.xmat[knee].reshape(3, 3).T @ (center - d.xpos[knee])
    geom_name = label if sphere >= 0 and label else new_name
    return Foot(label, sphere, geom_name, m.body(body).name, m.body(knee).name, pos, radius)


def farthest_sphere(m: mujoco.MjModel, reach: dict[int, float]) -> int:
    """The sphere at the end of a leg, -1 if there is none. Spheres that collide are preferred.

    `reach` is the distance [m] of each geom's end from the knee.
    """
    end = 0.8 * max(reach.values(), default=0.0)
    spheres = [g for g in reach if m.geom_type[g] == SPHERE and reach[g] > end]
    collides = {g: bool(m.geom_contype[g] | m.geom_conaffinity[g]) for g in spheres}
    return max(spheres, key=lambda g: (collides[g], reach[g]), default=-1)
