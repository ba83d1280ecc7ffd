"""The tool of an arm: a site of its file, the middle of its fingertips, or its last body's end."""

import re
from typing import NamedTuple

import mujoco
import numpy as np

from gpusim_rl.robots.arm.topology import Links
from gpusim_rl.robots.bodies import Array, kinematics, locate, subtree, tip

# Words in the names of sites that mark a tool, the best first.
WORDS = (
    r"grasp|pinch",
    r"tcp|tool",
    r"(?<![a-z])tip(?![a-z])",
    r"(?<![a-z])eef?(?![a-z])|end.?eff",
    r"grip",
    r"attach|flange",
    r"wrist|hand",
)
LEAST_AXIS_LENGTH_M = 0.01  # m: a joint that is nearer tells no axis of the tool, nor moves it


class Tool(NamedTuple):
    """The tool's frame: z points out of the hand."""

    name: str | None  # of a site or body of the file; None: of fingertips or geoms
    body: int  # id: of the body that it is part of
    pos: Array  # (3,) in the frame of that body [m]
    quat: Array  # (4,)
    why: str  # where it was found


def find_tool(m: mujoco.MjModel, links: Links, name: str | None) -> Tool:
    """The named tool; else a site with the name of one, the middle of the fingertips, the only site
    of the last link, the far end of the last body's geoms, or the origin of a body without any."""
    if name is not None:
        body, _, site = locate(m, name, "tool")
        return site_tool(m, site, "") if site >= 0 else body_tool(m, links, body, None, "")
    moved = set().union(*(subtree(m, b) for b in links.fingers))
    rigid = subtree(m, links.last) - moved
    sites = [i for i in range(m.nsite) if m.site_bodyid[i] in rigid and m.site(i).name]
    for word in WORDS:
        for i in sites:
            if re.search(word, m.site(i).name, re.I):
                return site_tool(m, i, f"the site {m.site(i).name!r} of the last link, by its name")
    tips = fingertips(m, links)
    if len(tips):
        why = "the middle of the fingertips"
        return body_tool(m, links, links.last, tips.mean(0), why)._replace(name=None)
    if len(sites) == 1:
        name = m.site(sites[0]).name
        return site_tool(m, sites[0], f"the site {name!r}, the only one of the last link")
    end = [b for b in sorted(rigid) if not any(m.body_parentid[c] == b for c in rigid)]
    last = end[0] if len(end) == 1 else links.last
    at = far_end(m, {last}, kinematics(m).xanchor[links.joints[-1]])
    if at is None:
        return body_tool(m, links, last, None, "the origin of the last body")
    why = "the far end of the last body's geoms"
    return body_tool(m, links, last, at, why)._replace(name=None)


def site_tool(m: mujoco.MjModel, site: int, why: str) -> Tool:
    """The tool that is a site of the file, in that site's frame."""
    body = int(m.site_bodyid[site])
    return Tool(m.site(site).name, body, m.site_pos[site].copy(), m.site_quat[site].copy(), why)


def body_tool(m: mujoco.MjModel, links: Links, body: int, at: Array | None, why: str) -> Tool:
    """The tool at a point (3,) of the world, else at a body's origin.

    Its z is the axis of the body that points away from the joints the most.
    """
    d = kinematics(m)
    frame = d.xmat[body].reshape(3, 3)
    at = d.xpos[body].copy() if at is None else at
    away = [at - d.xanchor[j] for j in reversed(links.joints)]
    out = next((v for v in away if np.linalg.norm(v) > LEAST_AXIS_LENGTH_M), np.array([0.0, 0, 1]))
    local = frame.T @ out
    axis = np.zeros(3)
    axis[np.abs(local).argmax()] = np.sign(local[np.abs(local).argmax()])
    quat = np.zeros(4)
    mujoco.mju_quatZ2Vec(quat, axis)
    return Tool(m.body(body).name, body, frame.T @ (at - d.xpos[body]), quat, why)


def fingertips(m: mujoco.MjModel, links: Links) -> Array:
    """(n, 3) the farthest point [m] of each finger from the last hinge, where it is at rest."""
    anchor = kinematics(m).xanchor[links.joints[-1]]
    inner = set().union(*(subtree(m, b) - {b} for b in links.fingers))
    ends = [far_end(m, subtree(m, b), anchor) for b in links.fingers if b not in inner]
    return np.array([end for end in ends if end is not None])


def far_end(m: mujoco.MjModel, bodies: set[int], anchor: Array) -> Array | None:
    """(3,) the point of these bodies' geoms that is farthest from an anchor [m]; None without."""
    d = kinematics(m)
    tips = [tip(m, d, g, anchor)[0] for g in range(m.ngeom) if m.geom_bodyid[g] in bodies]
    return max(tips, key=lambda p: float(np.linalg.norm(p - anchor)), default=None)


def unmoved_by(m: mujoco.MjModel, links: Links, tool: Tool) -> list[str]:
    """The names of joints on which the tool lies, so that they turn it and do not move it."""
    d = kinematics(m)
    place = d.xpos[tool.body] + d.xmat[tool.body].reshape(3, 3) @ tool.pos
    far = np.linalg.norm(d.xanchor[links.joints] - place, axis=1)
    near = np.flatnonzero(far < LEAST_AXIS_LENGTH_M)
    return [m.joint(links.joints[i]).name for i in near]
