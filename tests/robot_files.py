"""Small quadrupeds with German names in another order, so that nothing can be guessed."""

from pathlib import Path

LEGS = ("hr", "hl", "vr", "vl")  # rear right, rear left, front right, front left
KNEE = {"hr": -1, "hl": -1, "vr": 1, "vl": -1}  # the knees do not all turn the same way
PLACE = {"hr": (-0.2, -0.1), "hl": (-0.2, 0.1), "vr": (0.2, -0.1), "vl": (0.2, 0.1)}  # m
# FL, FR, RL, RR.
NAMES = [f"{leg}_{joint}" for leg in ("vl", "vr", "hl", "hr") for joint in ("quer", "hoch", "knie")]

LEG = """
<body name="{leg}_huefte" pos="{x} {y} 0">
  <inertial mass="0.5" pos="0 0 0" diaginertia="4e-4 5e-4 4e-4"/>
  <joint name="{leg}_quer" axis="1 0 0" range="-0.9 0.9"/>
  <body name="{leg}_ober" pos="0 {side} 0">
    <inertial mass="0.8" pos="0 0 -0.05" diaginertia="4e-3 4e-3 6e-4"/>
    <joint name="{leg}_hoch" axis="0 1 0" range="-1.5 3"/>
    <geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.2"/>
    <body name="{leg}_unter" pos="0 0 -0.2">
      <inertial mass="0.2" pos="0 0 -0.1" diaginertia="1e-3 1e-3 3e-5"/>
      <joint name="{leg}_knie" axis="0 {knee} 0" range="{low} {high}"/>
      <geom type="capsule" size="0.01" fromto="0 0 0 0 0 -0.19"/>
      <body name="{leg}_fuss" pos="0 0 -0.2"><geom type="sphere" size="0.02" mass="0.05"/></body>
    </body>
  </body>
</body>"""

LINK = """
<link name="{name}"><inertial><mass value="{mass}"/>
<inertia ixx="0.002" iyy="0.002" izz="0.002" ixy="0" ixz="0" iyz="0"/></inertial>
<collision><origin xyz="{at}"/><geometry>{shape}</geometry></collision></link>"""
JOINT = """
<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>
<origin xyz="{at}"/><axis xyz="{axis}"/>
<limit lower="{low}" upper="{high}" effort="25" velocity="20"/></joint>"""


def mjcf(
    *, inside: str = "", more: str = "", assets: str = "", free: str = "", beside: str = ""
) -> str:
    """A 9 kg quadruped without free joint, keyframe, sensor or ground; motors geared 10:1."""
    legs = ""
    for leg, (x, y) in PLACE.items():
        low, high = sorted((-2.6 * KNEE[leg], -0.5 * KNEE[leg]))
        legs += LEG.format(leg=leg, x=x, y=y / 2, side=y / 2, knee=KNEE[leg], low=low, high=high)
    motors = "".join(
        f'<motor joint="{name}" gear="10" ctrlrange="-2.5 2.5"/>' for name in reversed(NAMES)
    )
    return f"""
<mujoco model="hund"><compiler angle="radian" autolimits="true"/><asset>{assets}</asset>
<worldbody><body name="rumpf">{free}<inertial mass="3" pos="0 0 0" diaginertia="0.02 0.05 0.06"/>
<geom type="box" size="0.2 0.08 0.05"/>{legs}{inside}</body>{beside}</worldbody>
<actuator>{motors}</actuator>{more}</mujoco>"""


def urdf() -> str:
    """The like in URDF, feet at the ends of boxes."""
    shape = '<box size="0.02 0.02 0.2"/>'
    text = LINK.format(name="rumpf", mass=6, at="0 0 0", shape='<box size="0.4 0.16 0.1"/>')
    for leg, (x, y) in PLACE.items():
        names, parts = (
            [f"{leg}_{part}" for part in ("quer", "hoch", "knie")],
            [f"{leg}_{part}" for part in ("a", "b", "c")],
        )
        places = (f"{x} {y / 2} 0", f"0 {y / 2} 0", "0 0 -0.2")
        limits, axes = ((-0.9, 0.9), (-1.5, 3.0), (-2.6, -0.5)), ("1 0 0", "0 1 0", "0 1 0")
        for i in range(3):
            low, high = limits[i]
            at = dict(
                parent=["rumpf", *parts][i],
                child=parts[i],
                at=places[i],
                axis=axes[i],
                low=low,
                high=high,
            )
            text += JOINT.format(name=names[i], **at)
            text += LINK.format(
                name=parts[i],
                mass=0.5,
                at="0 0 -0.1",
                shape=shape if i else '<sphere radius="0.03"/>',
            )
    return f'<robot name="hund">{text}</robot>'


def write(folder: Path, text: str, name: str = "hund.xml") -> str:
    """Its path."""
    (folder / name).write_text(text)
    return str(folder / name)
