"""Masses and inertias of a robot's file that no rigid body can have: mended, and said."""

from collections.abc import Callable

import mujoco
import numpy as np

# Why: docs/decisions/robots.md
SMALLEST_INERTIA = 1e-3, 1e-6  # kg, kg m²: least mass and inertia of a body that are not mended
ROUNDING = 1e-6  # share of the largest moment by which the others together may fall short of it
LISTED = 4  # names in a line


def compile_mended(spec: mujoco.MjSpec, say: Callable[[str], None]) -> mujoco.MjModel:
    """The compiled spec. Inertias that MuJoCo refuses are mended in place, and `say` tells which.

    Masses and inertias of almost nothing become `SMALLEST_INERTIA`. Moments of inertia that are not
    positive, or of which one is larger than the others together, become their mean. Those that are
    so by rounding get a hair more. ValueError if it does not compile, for this reason or another.
    """
    try:
        return spec.compile()
    except ValueError as error:
        if "inertia" not in str(error):
            raise
    if mended := balance(spec):
        names = join_names(mended)
        say(f"no rigid body has the inertia of {names}: it gets the mean of its moments")
    try:
        return spec.compile()
    except ValueError as error:
        if "mjMINVAL" not in str(error):
            raise
    if any(body.mass < 0 for body in spec.bodies):
        raise ValueError("a body has a negative mass")
    spec.compiler.boundmass, spec.compiler.boundinertia = SMALLEST_INERTIA
    model = spec.compile()
    mass, inertia = SMALLEST_INERTIA
    few = (model.body_mass <= mass) | (model.body_inertia.min(1) <= inertia)
    light = join_names([model.body(i).name for i in np.flatnonzero(few) if i])
    say(f"bodies almost without mass or inertia get {mass} kg and {inertia} kg m²: {light}")
    return model


def balance(spec: mujoco.MjSpec) -> list[str]:
    """Give bodies whose moments of inertia are impossible their mean, in place. Returns their
    names."""
    mended = []
    for body in spec.bodies[1:]:
        full = body.fullinertia
        if not body.explicitinertial:
            continue
        moments = body.inertia
        if np.isfinite(full[0]):
            xx, yy, zz, xy, xz, yz = full
            moments = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        least, median, largest = sorted(moments)
        excess = largest - least - median
        if not np.any(moments) or (least > 0 and excess < -ROUNDING * largest):
            continue
        if least > 0 and excess < ROUNDING * largest:  # a flat body: not to be a sphere
            hair = 2 * ROUNDING * largest
            if np.isfinite(full[0]):
                body.fullinertia = full + hair * np.array([1, 1, 1, 0, 0, 0])
            else:
                body.inertia = body.inertia + hair
            continue
        body.fullinertia = [np.nan, 0, 0, 0, 0, 0]
        body.inertia = np.full(3, max(float(np.mean(moments)), SMALLEST_INERTIA[1]))
        mended.append(body.name)
    return mended


def implausible(m: mujoco.MjModel, base: str, size: float) -> str:
    """A line that names bodies that turn as if their mass lay outside of the robot; "" if none do.

    base: the robot's body. size: of the robot [m]: a body's radius of gyration is less.
    """
    first = m.body(base).id
    bodies = [i for i in range(first, m.nbody) if m.body_rootid[i] == m.body_rootid[first]]
    far = [m.body(i).name for i in bodies if m.body_inertia[i].max() > m.body_mass[i] * size**2]
    why = "as if their mass lay outside of the robot: are their inertias in kg m²?"
    return f"{join_names(far)} turn {why}" if far else ""


def join_names(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
