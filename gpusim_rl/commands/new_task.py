"""A task to begin with: play.py mode=new-task writes the files in templates/ under another name."""

import keyword
import re
from pathlib import Path
from typing import Any

import yaml

from gpusim_rl.core.paths import find_code, folders

# Why: docs/decisions/code.md
TEMPLATES = Path(__file__).with_name("templates")
TEMPLATE = "pointer"  # the name that stands in them, which docs/task.md explains
PLACES = {  # file of templates/ → where it goes
    "pointer.py": "tasks/pointer.py",
    "pointer.yaml": "conf/task/pointer.yaml",
    "pointer.xml": "tasks/assets/pointer.xml",
    "test_pointer.py": "tests/test_pointer.py",
}


def class_name(name: str) -> str:
    """The name of a task's class: my_arm becomes MyArm."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def check_name(name: Any) -> str:
    """The name, if a new task can have it; ValueError in one line if not."""
    if name is None or name == "":
        raise ValueError("mode=new-task needs name=NAME, for example name=my_arm")
    is_word = isinstance(name, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name)
    # the name is a module, its class another word; and YAML reads `on` as true
    reserved = is_word and (keyword.iskeyword(name) or keyword.iskeyword(class_name(name)))
    if not is_word or reserved or yaml.safe_load(name) != name:
        raise ValueError(
            f"name={name}: expected a name such as my_arm, of letters, digits and underscores, "
            "which neither Python nor YAML reserves"
        )
    if re.search(rf"^from .*import.*\b{class_name(name)}\b", read("pointer.py"), re.MULTILINE):
        raise ValueError(
            f"name={name}: its class would hide {class_name(name)}: choose another name"
        )
    for folder in folders("tasks"):
        taken = find_code("task", name, folder) or folder / name
        if taken.exists():
            raise ValueError(f"name={name}: {taken} exists already: choose another name")
    return name


def read(template: str) -> str:
    """The text of a file of templates/."""
    return (TEMPLATES / template).read_text(encoding="utf-8")


def render(name: str) -> dict[str, str]:
    """Path → text of the files of a new task."""
    words = {TEMPLATE: name, class_name(TEMPLATE): class_name(name)}

    def named(text: str) -> str:
        return re.sub("|".join(words), lambda match: words[match[0]], text)

    return {named(place): named(read(template)) for template, place in PLACES.items()}


def write_new(files: dict[str, str], root: Path) -> None:
    """Write files that do not exist yet below a directory: all of them, or none.

    OSError in one line if a file exists or cannot be written.
    """
    made: list[Path] = []
    place = ""
    try:
        for place, text in files.items():
            path = root / place
            for folder in reversed(path.relative_to(root).parents):
                if not (root / folder).exists():
                    (root / folder).mkdir()
                    made.append(root / folder)
            with open(path, "x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except BaseException as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, FileExistsError):
            raise FileExistsError(f"{place} exists already: nothing was written") from None
        if isinstance(error, OSError):
            raise OSError(f"{place} cannot be written: {error.strerror}") from None
        raise
