"""A model with all its files in one folder: the copy that a run keeps, and a check of models from
untrusted sources."""

import shutil
import stat
from pathlib import Path
from xml.etree import ElementTree

from gpusim_rl.core.files import MAX_MODEL

FOLDERS = ("assetdir", "meshdir", "texturedir")  # attributes of <compiler>


def parse(text: bytes | str) -> ElementTree.Element:
    """The root of an XML text without namespaces, which MuJoCo does not know."""
    root = ElementTree.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key: x for key, x in element.attrib.items() if "}" not in key}
    return root


def copy_model(file: Path, folder: Path) -> Path:
    """Copy an MJCF or URDF file into a folder, with its meshes, textures and height fields.

    `<include>`s are resolved, paths rewritten, and visual meshes of a URDF file left out. Numbers
    stay as they are written. Returns the path of the new MJCF file.

    Raises:
        ValueError: the model attaches other models by `<model file="…"/>`.
    """
    root = read_root(file)
    folder.mkdir(parents=True, exist_ok=True)
    if any(element.tag == "model" for element, _ in file_attributes(root)):
        raise ValueError(
            f'{file}: a run keeps a copy of its model, and cannot copy one with <model file="…"/>'
        )
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
    strip_path = flags[-1] == "true" if flags else root.tag == "robot"  # the default of URDF
    for i, (element, key) in enumerate(file_attributes(root)):
        kind = "texturedir" if element.tag == "texture" else "meshdir"
        base = folders.get(kind, folders.get("assetdir", ""))
        path = Path(element.attrib[key])
        path = Path(path.name) if strip_path else path
        # A mesh without a name has that of its file, so the file's name stays.
        subfolder = "" if strip_path else f"{i}/"
        (folder / subfolder).mkdir(exist_ok=True)
        shutil.copyfile(source / base / path, folder / subfolder / path.name)
        element.attrib[key] = f"{subfolder}{path.name}"


def remove_folders(root: ElementTree.Element) -> None:
    """Remove the folders of assets from the `<compiler>` elements, in place."""
    for element in root.iter("compiler"):
        for key in FOLDERS:
            element.attrib.pop(key, None)


def is_copy(file: Path, copy: Path) -> bool:
    """Whether `copy` has the text that `copy_model` makes of `file`. Assets are not compared."""

    def text(path: Path) -> bytes:
        root = read_root(path)
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
    root = parse(text)
    resolve_includes(root, file.parent)  # MjSpec.to_xml would round every number to six digits
    return ElementTree.tostring(root, encoding="unicode")


def read_root(file: Path) -> ElementTree.Element:
    """The root of a model file with what it includes, and without what MuJoCo never reads of it.

    That is the visual geometry of a URDF file, unless the file asks for it. Its colors are read.
    """
    root = parse(file.read_bytes())
    resolve_includes(root, file.parent)
    visible = any(e.get("discardvisual") == "false" for e in root.iter("compiler"))
    for visual in root.iter("visual") if root.tag == "robot" and not visible else ():
        for geometry in visual.findall("geometry"):
            visual.remove(geometry)
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


# Why: docs/decisions/0049-files-of-strangers.md
def check_confined(text: str, folder: Path | None, where: str) -> None:
    """Check that an MJCF text reads no file outside of a folder, and none at all without one.

    Args:
        text: from an untrusted source.
        folder: with the files that the model may read.
        where: how messages call the model.

    Raises:
        ValueError: it names a file elsewhere, declares XML entities or namespaces, or is not XML.
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
        if folder is None or not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{where}: the model names a file outside of {folder or 'itself'}: {name!r}"
            )
