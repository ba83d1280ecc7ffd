"""A model with all its files in one folder: what a run keeps of it, and a check that a stranger's model stays in its own."""

import shutil
from pathlib import Path
from xml.etree import ElementTree

FOLDERS = ("assetdir", "meshdir", "texturedir")  # attributes of <compiler>


def keep(file: Path, folder: Path) -> Path:
    """Copy an MJCF or URDF file and the meshes, textures and height fields that it names into a folder; the copy.

    `<include>`s are resolved, paths rewritten; numbers stay as they are written.
    """
    root = ElementTree.parse(file).getroot()
    include(root, file.parent)
    folder.mkdir(parents=True, exist_ok=True)
    compilers, urdf = list(root.iter("compiler")), root.tag == "robot"
    places = {key: element.attrib[key] for element in compilers for key in FOLDERS if key in element.attrib}
    stripped = [element.attrib["strippath"] for element in compilers if "strippath" in element.attrib]
    bare = stripped[-1] == "true" if stripped else urdf
    if any(element.tag == "model" for element, _ in files(root)):
        raise ValueError(f"{file}: a run keeps its model, and cannot keep one that attaches others by <model file=…>")
    for i, (element, key) in enumerate(files(root)):
        place = places.get("texturedir" if element.tag == "texture" else "meshdir", places.get("assetdir", ""))
        named = Path(Path(element.attrib[key]).name if bare else element.attrib[key])
        own = "" if bare else f"{i}/"  # a mesh is called as its file is
        (folder / own).mkdir(exist_ok=True)
        shutil.copyfile(file.parent / place / named, folder / own / named.name)
        element.attrib[key] = f"{own}{named.name}"
    for element in compilers:
        for key in FOLDERS:
            element.attrib.pop(key, None)
    copy = folder / "model.xml"
    copy.write_text(ElementTree.tostring(root, encoding="unicode"), encoding="utf-8")
    return copy


def kept(file: Path, copy: Path) -> bool:
    """Whether a copy is what `keep` makes of the file, as far as the text tells."""

    def text(path: Path) -> bytes:
        root = ElementTree.parse(path).getroot()
        include(root, path.parent)
        for element, key in files(root):
            element.attrib[key] = Path(element.attrib[key]).name
        for element in root.iter("compiler"):
            for key in FOLDERS:
                element.attrib.pop(key, None)
        return ElementTree.tostring(root)

    return text(file) == text(copy)


def include(element: ElementTree.Element, folder: Path) -> None:
    """Put what each `<include file="…"/>` below an element names in its place. In place; paths are relative to folder."""
    for i, child in reversed(list(enumerate(element))):
        if child.tag == "include":
            whole = ElementTree.parse(folder / child.attrib["file"]).getroot()
            include(whole, folder)
            element[i : i + 1] = list(whole)
        else:
            include(child, folder)


def files(root: ElementTree.Element) -> list[tuple[ElementTree.Element, str]]:
    """(element, attribute) of everything in an MJCF that names a file."""
    return [(e, key) for e in root.iter() for key in e.attrib if key in ("file", "filename") or key.startswith("file")]


def confined(text: str, folder: Path | None, where: str) -> None:
    """ValueError if a stranger's MJCF names a file outside of folder (any file if that is None), or expands entities."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError(f"{where}: a model that declares XML entities is not read")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"{where}: not XML: {error}") from None
    folders = [e.attrib[key] for e in root.iter("compiler") for key in FOLDERS if key in e.attrib]
    others = [
        e.attrib[key] for e, key in files(root) if e.tag in ("include", "model")
    ]  # would name files in turn: `keep` has none
    links = [str(file) for file in folder.rglob("*") if file.is_symlink()] if folder else []
    if folders or others or links:
        raise ValueError(f"{where}: the model reaches for {(folders + others + links)[0]!r}: only files beside it are read")
    for name in [e.attrib[key] for e, key in files(root)]:
        if folder is None or not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{where}: the model names a file outside of {folder or 'itself'}: {name!r}")
