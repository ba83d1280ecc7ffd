"""The visual geometry of a URDF file, in a model for pictures alone.

MuJoCo does not read it, and the model that is simulated has none of it.
"""

import copy
import io
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np

from gpusim_rl.core.errors import warn_once
from gpusim_rl.core.paths import install
from gpusim_rl.robots.bodies import GEOM, MESH
from gpusim_rl.robots.inertias import join_names
from gpusim_rl.robots.model_files import (
    find_package_file,
    mesh_folders,
    read_root,
    reads_visuals,
    remove_folders,
    visual_meshes,
)
from gpusim_rl.robots.prepare import HIDDEN, added_name

VISUAL = added_name("visual")  # how the names of such geoms begin
FORMATS = (".obj", ".stl", ".dae")  # MuJoCo reads the first two
SHELL = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL  # an open mesh has no volume
SLENDER = 0.1  # radius of a capsule between joints, in median lengths of them
LARGEST_MESH_BYTES = 1 << 26  # bytes of a mesh

NO_EFFECT: dict[str, Any] = dict(mass=0, contype=0, conaffinity=0, group=1)

Part = tuple[str, np.ndarray | None]  # the name of a mesh, and its color (4,) if the file has one


def is_urdf(file: Path) -> bool:
    """Whether a model file is a URDF whose visual geometry MuJoCo does not read."""
    root = read_root(file)
    return root.tag == "robot" and not reads_visuals(root)


def picture_model(spec: mujoco.MjSpec, file: Path) -> mujoco.MjModel:
    """The model of a robot with the visual geometry of its URDF file.

    The elements of the spec keep their order, and all but geoms their numbers. Geoms that are added
    have names that begin with `VISUAL`, and neither mass nor contacts. Collision shapes are hidden
    where a link has visual geometry. A link without any shape is drawn as capsules between joints.
    One line says what cannot be shown.
    """
    root, picture = read_root(file), spec.copy()
    faults = add_visuals(picture, root, file.parent)
    links = add_links(picture, {link.get("name", "") for link in root.iter("link")})
    lines = [f"pictures lack {', '.join(faults)}"] if faults else []
    if links:
        lines.append(f"capsules between joints stand for links without shapes: {join_names(links)}")
    if lines:
        warn_once(f"warning: {file}: {'; '.join(lines)}")
    return picture.compile()


def simulated_geoms(picture: mujoco.MjModel) -> np.ndarray:
    """(ngeom,) the numbers that the geoms of a robot's model have in its `picture_model`."""
    names = [picture.geom(i).name for i in range(picture.ngeom)]
    return np.array([i for i, name in enumerate(names) if not name.startswith(VISUAL)])


def add_visuals(spec: mujoco.MjSpec, root: ElementTree.Element, folder: Path) -> list[str]:
    """Add the visual geometry of a URDF file to a robot's spec, in place.

    Returns what cannot be shown, and why.
    """
    visuals, faults = copy.deepcopy(root), dict[str, list[str]]()  # reason → meshes
    names: dict[tuple[str, str], str] = {}  # file and scale of a mesh → its name in `visuals`
    parts: dict[str, list[Part]] = {}  # that name → meshes in the spec
    for mesh in visual_meshes(visuals):
        key = mesh.get("filename", ""), mesh.attrib.pop("scale", "1 1 1")
        if key not in names:
            names[key] = f"mesh{len(names)}"
            try:
                file = find_package_file(key[0], folder, mesh_folders(visuals))
                parts[names[key]] = add_mesh(spec, *key, file)
            except ValueError as error:
                faults.setdefault(str(error), []).append(Path(key[0]).name)
        mesh.attrib["filename"] = f"{names[key]}.obj"  # MuJoCo only parses it
    try:
        source, dressed = parse_visuals(visuals), set[str]()
    except ValueError as error:
        return [f"all visual geometry ({first_line(error)})"]
    for i, geom in enumerate(source.geoms):  # they are valid as long as `source`
        body = spec.body(geom.parent.name)
        shapes = parts.get(geom.meshname, []) if geom.type == MESH else [("", None)]
        for j, (mesh, color) in enumerate(shapes if body else ()):
            look = dict(NO_EFFECT, pos=geom.pos, quat=geom.quat, size=geom.size, type=geom.type)
            look["rgba"] = geom.rgba if color is None else color
            body.add_geom(name=f"{VISUAL}{i}.{j}", meshname=mesh, **look)
            dressed.add(body.name)
    for geom in spec.geoms:
        if geom.parent.name in dressed - {"world"} and not geom.name.startswith(VISUAL):
            geom.group = HIDDEN
    return [f"{join_names(meshes)} ({reason})" for reason, meshes in faults.items()]


def parse_visuals(root: ElementTree.Element) -> mujoco.MjSpec:
    """The spec of a URDF file's visual geometry alone. Changes root in place."""
    for link in root.iter("link"):
        for element in (*link.findall("collision"), *link.findall("inertial")):
            link.remove(element)
    remove_folders(root)
    compilers = [*root.iter("compiler")]
    if not compilers:
        extension = ElementTree.SubElement(root, "mujoco")
        compilers = [ElementTree.SubElement(extension, "compiler")]
    for compiler in compilers:
        compiler.attrib["discardvisual"] = "false"
    return mujoco.MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"))


def add_mesh(spec: mujoco.MjSpec, name: str, scale: str, file: Path | None) -> list[Part]:
    """Add the mesh of a file to the spec of a picture, in place. ValueError, with why, if it cannot
    be shown. Name and scale are as the URDF file writes them.
    """
    suffix = Path(name).suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"its format is none of {', '.join(FORMATS)}")
    if file is None:
        raise ValueError("no such file")
    if file.stat().st_size > LARGEST_MESH_BYTES:
        raise ValueError(f"larger than {LARGEST_MESH_BYTES >> 20} MiB")
    options, first = dict(scale=list(map(float, scale.split())), inertia=SHELL), len(spec.meshes)
    source = [({"file": str(file.resolve())}, None)] if suffix != ".dae" else read_dae(file)
    parts = [
        (f"{VISUAL}{i}", options | shape, color) for i, (shape, color) in enumerate(source, first)
    ]
    trial = mujoco.MjSpec()  # one mesh that MuJoCo refuses must not spoil the picture of the others
    for name, shape, _ in parts:
        trial.add_mesh(name=name, **shape)
        trial.worldbody.add_geom(type=MESH, meshname=name, **NO_EFFECT)
    try:
        trial.compile()
    except ValueError as error:
        raise ValueError(first_line(error)) from None
    for name, shape, _ in parts:
        spec.add_mesh(name=name, **shape)
    return [(name, color) for name, _, color in parts]


def read_dae(file: Path) -> Iterator[tuple[dict[str, Any], np.ndarray | None]]:
    """Vertices, faces and color of the parts of a COLLADA file. ValueError if it cannot be read."""
    if not (find_spec("trimesh") and find_spec("collada")):
        raise ValueError(f"needs trimesh and pycollada: {install('meshes')}")
    import trimesh

    data = file.read_bytes()
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ValueError("it declares XML entities")
    try:
        # bytes, so that no other file, such as a texture, is read
        scene = trimesh.load_scene(io.BytesIO(data), file_type="dae")
        if scene.units:
            scene = scene.convert_units("meters")
        parts = [part for part in scene.dump() if len(part.vertices) >= 4]  # as MuJoCo asks for
    except Exception as error:  # The readers raise errors of many kinds.
        raise ValueError(f"not COLLADA: {' '.join(str(error).split())}") from None
    if not parts:
        raise ValueError("it has no surface")
    for part in parts:
        arrays = dict(uservert=part.vertices.ravel(), userface=part.faces.ravel())
        color = getattr(part.visual, "main_color", None)
        if color is None:
            color = getattr(getattr(part.visual, "material", None), "main_color", None)
        yield arrays, None if color is None else np.asarray(color, np.float32)[:4] / 255


def first_line(error: ValueError) -> str:
    """What an error of MuJoCo says, without the element, whose name is one of ours."""
    return str(error).splitlines()[0].removeprefix("Error: ")


def add_links(spec: mujoco.MjSpec, links: set[str]) -> list[str]:
    """Draw links that have no shape as capsules from their joint to the next ones, in place.

    The last link of a chain reaches to its foot or its center of mass. Returns their names.
    """
    ends = {
        body: [end for end in link_ends(body) if np.linalg.norm(end) > 0]
        for body in spec.bodies
        if body.name in links and not any(map(is_shape, body.geoms))
    }
    lengths = [float(np.linalg.norm(end)) for places in ends.values() for end in places]
    radius = SLENDER * float(np.median(lengths)) if lengths else 0.0
    look = dict(type=GEOM.mjGEOM_CAPSULE, size=[radius, 0, 0], rgba=[0.6, 0.62, 0.66, 1])
    for body, places in ends.items():
        for i, end in enumerate(places):
            name = f"{VISUAL}/{body.name}/{i}"
            body.add_geom(name=name, fromto=[0, 0, 0, *end], **look, **NO_EFFECT)
    return [body.name for body, places in ends.items() if places]


def link_ends(body: mujoco.MjsBody) -> list[np.ndarray]:
    """Where capsules of a body end (3,) [m]: at the next bodies, and at feet that were added."""
    ends = [x.pos for x in (*body.bodies, *body.geoms)]
    if not ends and body.joints and np.isfinite(body.ipos).all():
        return [body.ipos]
    return ends


def is_shape(geom: mujoco.MjsGeom) -> bool:
    """Whether a geom is visible, and of the file: a foot that `add_sphere` added is not."""
    return geom.group < HIDDEN - 1
