"""Small humanoids for the tests, with German names, so that nothing can be guessed from names."""

LEG = """
<body name="{leg}_huefte" pos="0 {y} -0.1">
  <inertial mass="1" pos="0 0 0" diaginertia="2e-3 2e-3 2e-3"/>
  <joint name="{leg}_quer" axis="1 0 0" range="-0.5 0.5"/>
  <body name="{leg}_ober">
    <joint name="{leg}_hoch" axis="0 {turn} 0" range="-2 2"/>
    <geom type="capsule" size="0.05" fromto="0 0 -0.05 0 0 -0.25" mass="3"/>
    <body name="{leg}_unter" pos="0 0 -0.3">
      <joint name="{leg}_knie" axis="0 {turn} 0" range="{knee}"/>
      <geom type="capsule" size="0.04" fromto="0 0 -0.05 0 0 -0.25" mass="2"/>
      <body name="{leg}_fuss" pos="0 0 -0.3">
        <joint name="{leg}_sprung" axis="0 {turn} 0" range="-1 1" {ankle}/>
        <geom type="box" size="{foot}" pos="0.03 0 -0.03" mass="0.5"/>
      </body>
    </body>
  </body>
</body>"""
ARM = """
<body name="{arm}_arm" pos="0 {y} 0.3"><joint name="{arm}_schulter" axis="0 1 0"/>
<geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3" mass="1"/></body>"""


def mjcf(
    *,
    joint: str = "",
    foot: str = "0.1 0.04 0.01",
    ankle: str = "",
    trunk: str = "0 0 0.2",
    arms: bool = True,
    legs: tuple[str, ...] = ("rechts", "links"),
    more: str = "",
) -> str:
    """A 29 kg humanoid whose knees turn about opposite axes, the right leg first."""
    body = ""
    for leg in legs:
        y, turn = (-0.1, -1) if leg == "rechts" else (0.1, 1)
        knee = "-2.5 0" if turn < 0 else "0 2.5"
        body += LEG.format(leg=leg, y=y, turn=turn, knee=knee, foot=foot, ankle=ankle)
        body += ARM.format(arm=leg, y=2 * y) if arms else ""
    return f"""
<mujoco model="mensch"><compiler angle="radian" autolimits="true"/>
<worldbody><body name="rumpf" pos="0 0 0.8">{joint}
<geom type="capsule" size="0.1" fromto="0 0 0 0 0 0.35" mass="0"/>
<inertial mass="14" pos="{trunk}" diaginertia="0.4 0.4 0.1"/>{body}</body></worldbody>
{more}</mujoco>"""
