"""A model with all its files in one folder: the copy that a run keeps, and a check of models from
untrusted sources."""

import re
import shutil
import stat
from pathlib import Path
from xml.etree import ElementTree

from gpusim_rl.core.errors import warn
from gpusim_rl.core.files import MAX_MODEL

FOLDERS = ("assetdir", "meshdir", "texturedir")  # attributes of <compiler>
MAX_VISUALS = 1 << 26  # bytes of all visual meshes that a run copies
UNNAMED = "MuJoCo Model"  # MuJoCo's name of a model whose file gives none
# Errors of MuJoCo about what another file may hold, which includes this one
OF_A_PART = re.compile(
    r"' not found in|size \d must be positive|unknown default class|'mujocoinclude'|"
    r"unknown transmission target|unrecognized name|unknown target body"
)


def model_name(name: str, file: Path) -> str:
    """The name of a model, as a file could have it: its own, or that of a file that gives none."""
    own = "" if name == UNNAMED else name
    names = (re.sub(r"[^\w.-]+", "_", x).strip("._-") for x in (own, file.stem))
    return next(filter(None, names), "robot")


def reason(error: ValueError) -> str:
    """Why MuJoCo refuses a model, in one line, and what to do if the file may be a part of one."""
    line = " ".join(str(error).split())
    part = "this file may be a part: give the scene file that includes it"
    return f"{line}; {part}" if OF_A_PART.search(line) else line


def parse(text: bytes | str) -> ElementTree.Element:
    """The root of an XML text without namespaces, which MuJoCo does not know."""
    root = ElementTree.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key: x for key, x in element.attrib.items() if "}" not in key}
    return root


def copy_model(file: Path, folder: Path) -> Path:
    """Copy an MJCF or URDF file into a folder, with its meshes, textures and height fields.

    `<include>`s are resolved and paths rewritten. Visual meshes of a URDF file are copied as far as
    they are found, and a line says which are too large. Numbers stay as they are written. Returns
    the path of the new MJCF file. ValueError if it attaches other models by `<model file="…"/>`.
    """
    root = read_root(file)
    folder.mkdir(parents=True, exist_ok=True)
    if any(element.tag == "model" for element, _ in file_attributes(root)):
        raise ValueError(
            f'{file}: a run keeps a copy of its model, and cannot copy one with <model file="…"/>'
        )
    key = "name" if root.tag == "robot" else "model"
    root.set(key, model_name(root.get(key, ""), file))  # the copy's file has another
    copy_visuals(root, file, folder)
    copy_assets(root, file.parent, folder)
    remove_folders(root)
    copy = folder / "model.xml"
    copy.write_text(ElementTree.tostring(root, encoding="unicode"), encoding="utf-8")
    return copy


def copy_assets(root: ElementTree.Element, source: Path, folder: Path) -> None:
    """Copy the files that a model names from source to folder. Writes the new paths into root, in
    place."""
    compilers = list(root.iter("compiler"))
    folders = {key: e.attrib[key] for e in compilers for key in FOLDERS if key in e.attrib}
    flags = [e.attrib["strippath"] for e in compilers if "strippath" in e.attrib]
    strip_path = flags[-1:] == ["true"]
    visuals = visual_meshes(root)
    for i, (element, key) in enumerate(file_attributes(root)):
        if element in visuals:
            continue
        if root.tag == "robot" and element.tag != "mesh":  # a plugin, or a texture of ROS
            element.attrib[key] = Path(element.attrib[key]).name
            continue
        kind = "texturedir" if element.tag == "texture" else "meshdir"
        base = folders.get(kind, folders.get("assetdir", ""))
        path = Path(find_mesh(element.attrib[key], source, mesh_folders(root)))
        path = Path(path.name) if strip_path else path
        # A mesh without a name has that of its file, so the file's name stays.
        subfolder = "" if strip_path else f"{i}/"
        (folder / subfolder).mkdir(exist_ok=True)
        shutil.copyfile(source / base / path, folder / subfolder / path.name)
        element.attrib[key] = f"{subfolder}{path.name}"


def copy_visuals(root: ElementTree.Element, file: Path, folder: Path) -> None:
    """Copy the visual meshes of a URDF file into folder/visual. Writes the new paths into root, in
    place."""
    size, large, copies = 0, [], dict[Path, str]()
    for mesh in visual_meshes(root):
        path = find_package_file(mesh.get("filename", ""), file.parent, mesh_folders(root))
        name = mesh.attrib["filename"] = Path(mesh.get("filename", "")).name
        if path and path not in copies:
            length = path.stat().st_size
            if size + length > MAX_VISUALS:
                large.append(name)
                continue
            size += length
            copies[path] = f"visual/{len(copies)}/{name}"
            (folder / copies[path]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / copies[path])
        if path:
            mesh.attrib["filename"] = copies[path]
    if large:
        warn(
            f"warning: {file}: a run keeps {MAX_VISUALS >> 20} MiB of visual meshes at most, so "
            f"its films do not show {', '.join(dict.fromkeys(large))}"
        )


def visual_meshes(root: ElementTree.Element) -> list[ElementTree.Element]:
    """The visual meshes of a URDF file that MuJoCo does not read."""
    visuals = root.iter("visual") if root.tag == "robot" and not reads_visuals(root) else ()
    return [mesh for visual in visuals for mesh in visual.iter("mesh")]


def reads_visuals(root: ElementTree.Element) -> bool:
    """Whether a URDF file asks MuJoCo to read its visual geometry."""
    return any(e.get("discardvisual") == "false" for e in root.iter("compiler"))


def mesh_folders(root: ElementTree.Element) -> list[str]:
    """The folders of meshes that the `<compiler>` elements name."""
    return [e.attrib["meshdir"] for e in root.iter("compiler") if "meshdir" in e.attrib]


def find_mesh(name: str, folder: Path, mesh_folders: list[str]) -> str:
    """The path that MuJoCo can read of a mesh that `find_package_file` finds; other names stay.

    ValueError, with the folders that were searched, if there is no such file.
    """
    if "://" not in name:
        return name
    path = find_package_file(name, folder, mesh_folders)
    if path is None:
        others = "".join(f", {folder / x}" for x in mesh_folders)
        places = f"{folder.resolve()}, all folders above{others}"
        raise ValueError(f"no file of the mesh {name!r} was found in {places}")
    return str(path.resolve())


def find_package_file(name: str, folder: Path, mesh_folders: list[str]) -> Path | None:
    """The file of a mesh of a URDF file, which lies in a folder; None if there is none.

    A path is looked up from the folder and the mesh folders. `package://name/path` is looked up
    from each folder above, which may be the package or hold it.
    """
    folders = [folder, *(folder / x for x in mesh_folders)]
    places = [place / path for place in folders for path in (name, Path(name).name)]
    scheme, _, inside = name.partition("://")
    if scheme == "package":
        _, _, within = inside.partition("/")
        above = folder.resolve()
        places += [x / path for x in (above, *above.parents) for path in (inside, within)]
    elif scheme == "file":
        places.append(Path(inside))
    return next((place for place in places if place.is_file()), None)


def remove_folders(root: ElementTree.Element) -> None:
    """Remove the folders of assets from the `<compiler>` elements, in place."""
    for element in root.iter("compiler"):
        for key in FOLDERS:
            element.attrib.pop(key, None)


def is_copy(file: Path, copy: Path) -> bool:
    """Whether `copy` has the text that `copy_model` makes of `file`.

    Neither names, assets nor the visual geometry of a URDF file, which MuJoCo does not read, are
    compared.
    """

    def text(path: Path) -> bytes:
        root = read_root(path)
        root.attrib.clear()
        for visual in () if reads_visuals(root) else root.iter("visual"):
            for geometry in visual.findall("geometry"):
                visual.remove(geometry)
        for element, key in file_attributes(root):
            element.attrib[key] = Path(element.attrib[key]).name
        remove_folders(root)
        return ElementTree.tostring(root)

    return text(file) == text(copy)


def read_mjcf(file: Path) -> str:
    """The text of a model file, with the files that it includes."""
    text = file.read_text(encoding="utf-8")
    if "<include" not in text:
        return text
    # MjSpec.to_xml would round every number to six digits
    return ElementTree.tostring(read_root(file), encoding="unicode")


def read_root(file: Path) -> ElementTree.Element:
    """The root of a model file, with what it includes."""
    root = parse(file.read_bytes())
    resolve_includes(root, file.parent)
    return root


def resolve_includes(element: ElementTree.Element, folder: Path) -> None:
    """Replace each `<include file="…"/>` below an element by the content of the file, in place.

    Paths are relative to folder.
    """
    # from the end, as an include may become any number of elements
    for i, child in reversed(list(enumerate(element))):
        if child.tag == "include":
            included = parse((folder / child.attrib["file"]).read_bytes())
            resolve_includes(included, folder)
            element[i : i + 1] = list(included)
        else:
            resolve_includes(child, folder)


def file_attributes(root: ElementTree.Element) -> list[tuple[ElementTree.Element, str]]:
    """The (element, attribute) pairs that name a file."""
    return [
        (element, key)
        for element in root.iter()
        for key in element.attrib
        if key in ("file", "filename") or key.startswith("file")
    ]


def unusual_files(folder: Path) -> list[str]:
    """The links, pipes and devices in a folder, and the largest file if all are too large."""
    kinds = {path: path.lstat() for path in folder.rglob("*")}
    sizes = {path: x.st_size for path, x in kinds.items() if stat.S_ISREG(x.st_mode)}
    usual = sizes.keys() | {path for path, x in kinds.items() if stat.S_ISDIR(x.st_mode)}
    large = [max(sizes, key=lambda path: sizes[path])] if sum(sizes.values()) > MAX_MODEL else []
    return [str(path) for path in (*(kinds.keys() - usual), *large)]


# Why: docs/decisions/untrusted-files.md
def check_confined(text: str, folder: Path | None, where: str) -> None:
    """ValueError if an untrusted MJCF text reads a file outside of a folder, or any without one.

    So it is if the text declares XML entities or namespaces, or is not XML. where: as messages call
    the model.
    """
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError(f"{where}: a model that declares XML entities is not read")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"{where}: not XML: {error}") from None
    if any("}" in name for element in root.iter() for name in (element.tag, *element.attrib)):
        raise ValueError(f"{where}: a model with XML namespaces is not read")
    refused = [e.attrib[key] for e in root.iter("compiler") for key in FOLDERS if key in e.attrib]
    # These could name files in turn. `copy_model` leaves none.
    nested = ("include", "model")
    refused += [e.attrib[key] for e, key in file_attributes(root) if e.tag in nested]
    if refused:
        raise ValueError(
            f"{where}: the model reaches for {refused[0]!r}: only files beside it are read"
        )
    if folder and (unusual := unusual_files(folder)):
        raise ValueError(f"{where}: {unusual[0]} is a link, a pipe or too large")
    for name in [e.attrib[key] for e, key in file_attributes(root)]:
        inside = folder and (folder / name).resolve().is_relative_to(folder.resolve())
        if "://" in name or not inside:  # `find_package_file` looks elsewhere
            raise ValueError(
                f"{where}: the model names a file outside of {folder or 'itself'}: {name!r}"
            )
