"""Where configuration and code are: in this package, and in the user's working directory."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# Why: docs/decisions/configuration.md
# In a checkout these two are links to conf/ and tasks/ at its top level.
CONF, TASKS = PACKAGE / "conf", PACKAGE / "tasks"
ASSETS = TASKS / "assets"  # MJCF files
CODE = {"task": "tasks", "algo": "algorithms"}  # group → folder with the code of its names


def program(name: str) -> str:
    """How to start `train`, `play` or another verb: by its file in a checkout that has one."""
    file, installed = PACKAGE.parent / f"{name}.py", Path(sys.argv[0]).name.startswith("gpusim")
    if file.is_file() and not installed:
        return f"{executable('python')} {name}.py"
    return f"{executable('gpusim')} {name}"


def executable(name: str) -> str:
    """How a shell starts a command of this environment, which need not be active: name or path."""
    folder, first = Path(sys.executable).parent, shutil.which(name)
    if first and Path(first).parent.resolve() == folder.resolve():
        return name
    path, here = folder / name, Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def with_word(word: str) -> str:
    """The command line of this process with one more word, to be copied.

    The word alone if another program uses the package.
    """
    name = Path(sys.argv[0]).name
    if name in ("train.py", "play.py"):
        verb = name.removesuffix(".py")
    elif name.startswith("gpusim "):
        verb = name.removeprefix("gpusim ")
    else:
        return word
    return f"{program(verb)} {shlex.join([*sys.argv[1:], word])}"


def install(extra: str) -> str:
    """The command that installs an optional part of the package, such as `web`."""
    pip, checkout = f"{executable('python')} -m pip install", PACKAGE.parent
    if not (checkout / "pyproject.toml").is_file():
        return f"{pip} '{PACKAGE.name}[{extra}]'"
    folder = "." if checkout == Path.cwd() else checkout
    return f"{pip} -e '{folder}[{extra}]'"


def search_path() -> str:
    """PYTHONPATH of a process that imports this package."""
    return os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))


def quoted(key: str, value: Path | str) -> str:
    """A word of a command line for a path or a text with any characters."""
    text = str(value).replace("'", r"\'")
    return f"{key}='{text}'"


def user_folder(name: str) -> Path | None:
    """A folder such as `conf` of the working directory; None if it has none of its own."""
    folder = Path.cwd() / name
    return folder if folder.is_dir() and not folder.samefile(PACKAGE / name) else None


def folders(name: str) -> list[Path]:
    """The folders `conf` or `tasks` to search: the user's, if there is one, then ours."""
    user = user_folder(name)
    return [user, PACKAGE / name] if user else [PACKAGE / name]


def find_code(group: str, name: str, folder: Path) -> Path | None:
    """The file <name>.py at any depth of a folder; None if there is none, ValueError if several."""
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        return None
    files = sorted(folder.rglob(f"{name}.py"))
    if len(files) > 1:
        raise ValueError(f"{group} {name!r} has several files: {', '.join(map(str, files))}")
    return files[0] if files else None


def user_code(group: str, name: str) -> Path | None:
    """The file of a task or an algorithm in the working directory; None if there is none."""
    folder = user_folder(CODE[group])
    return find_code(group, name, folder) if folder else None


def find_asset(name: str) -> Path | None:
    """A model file by its bare name: in the user's tasks/assets or tasks/, then in ours."""
    if not name or Path(name).name != name:
        return None
    places = ([x / "assets" / name, *sorted(x.rglob(name))] for x in folders("tasks"))
    return next((file for files in places for file in files if file.is_file()), None)


def data_path(name: str) -> Path:
    """A file by its path, or as `find_asset` by its bare name; the path if there is neither."""
    return Path(name) if Path(name).is_file() else find_asset(name) or Path(name)


def find_data(key: str, name: str) -> Path:
    """The file that a key of a task names, as `data_path`.

    FileNotFoundError with the choices if there is none.
    """
    file = data_path(name)
    if not file.is_file():
        found = [x.name for y in folders("tasks") for x in y.glob(f"assets/*{file.suffix}")]
        choices = ", ".join(sorted({*found})) or "ours"
        raise FileNotFoundError(f"{key}={name}: no such file, here or among {choices}")
    return file
