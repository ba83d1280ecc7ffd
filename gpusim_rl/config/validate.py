"""Checks of names, files and packages. They load neither torch nor a robot."""

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from gpusim_rl.config.compose import choices
from gpusim_rl.core.files import Plain
from gpusim_rl.core.paths import CODE, install, user_code, with_word
from gpusim_rl.runs.run import run_that_needs

TASK_CODE = "task_code=here"  # how a user allows code of the working directory
WORDS = {"task": "task", "algo": "algorithm"}  # of messages
EXTRAS = {  # word → a module that it needs, the package that has it, and the extra that installs it
    "log=tensorboard": ("tensorboard", "tensorboard", "tensorboard"),
    "log=mlflow": ("mlflow", "mlflow-skinny", "mlflow"),
    "sim=mjx": ("jax", "JAX", "mjx"),
    "cluster=ray": ("ray", "Ray", "ray"),
    "search=optuna": ("optuna", "Optuna", "optuna"),
}


def check_extras(*words: str) -> None:
    """ValueError if a training with these words lacks a package, or the address of a server.

    A run that was made with it can be opened all the same.
    """
    for word in filter(EXTRAS.get, words):
        module, package, extra = EXTRAS[word]
        if not find_spec(module):
            raise ValueError(f"{word} needs {package}: {install(extra)}")
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if "log=mlflow" not in words:
        return
    if not uri:
        raise ValueError("log=mlflow: set MLFLOW_TRACKING_URI, such as to http://127.0.0.1:5000")
    if not uri.startswith(("http://", "https://")):
        raise ValueError(f"MLFLOW_TRACKING_URI={uri}: expected an address with http:// or https://")


def writable(
    key: str, value: str | None, suffixes: tuple[str, ...] = (), inputs: Iterable[object] = ()
) -> None:
    """ValueError or OSError in one line unless a file can be written there; null is well.

    Args:
        suffixes: of which the file's name has one; it may have any if there is none.
        inputs: paths, or words, of what is read; the file may be none of these.
    """
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"{key}={value!r}: expected a file to write")
    path = Path(value)
    if suffixes and path.suffix not in suffixes:
        raise ValueError(f"{key}={value}: expected a name that ends in {', '.join(suffixes)}")
    if path.is_dir():
        raise OSError(f"{key}={value} is a directory")
    if path.exists() and not path.is_file():
        raise OSError(f"{key}={value} is a pipe or a device")
    if not path.parent.is_dir():
        raise OSError(f"{key}={value}: no directory {path.parent}")
    if run := run_that_needs(path):
        raise ValueError(f"{key}={value} is a file of the run {run.name}: choose another name")
    read = [Path(x) for x in inputs if isinstance(x, str)]
    if path.exists() and any(file.exists() and path.samefile(file) for file in read):
        raise ValueError(f"{key}={value} would replace a file that is read: choose another name")
    probe(key, value, path.parent)


def probe(key: str, value: str, folder: Path) -> None:
    """OSError in one line unless files can be made in a folder.

    It is tried, because permissions do not tell all.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{key}={value} cannot be written: {error.strerror}") from None


def check_name(group: str, name: str) -> str:
    """The name of a task or an algorithm, if conf/ has such a file; ValueError if not.

    A run's config.yaml may come from a stranger.
    """
    names = choices(group)
    if not re.fullmatch(r"[A-Za-z_]\w*", str(name)) or name not in names:
        raise ValueError(f"unknown {WORDS[group]} {name!r}: choose one of {', '.join(names)}")
    return name


def find_codes(cfg: Plain, named: dict[str, str]) -> dict[str, str | None]:
    """task_code and algo_code of a new training; `named` are those of the command line."""
    return {f"{group}_code": find_code(group, cfg, named.get(group)) for group in CODE}


def find_code(group: str, cfg: Plain, named: str | None) -> str | None:
    """Where the code of a new training's task or algorithm comes from: "here", or null for ours.

    A file in the working directory is imported only if it is `named` on the command line. It wins
    over a task of ours, but not over an algorithm: a file ppo.py may belong to another program.
    ValueError if it is not named, or if there is no file.
    """
    name, folder = str(cfg[group]["name"]), CODE[group]
    builtin = name in choices(group, builtin=True)
    file = None if builtin and group == "algo" else user_code(group, name)
    if file is None and not builtin:
        raise ValueError(f"{group}={name}: no file {name}.py in {folder}/, here or among ours")
    if file is None:
        return None
    if named == name or cfg["task_code"] == "here":
        return "here"
    raise ValueError(f"{file} is imported only if you name it: say {group}={name}")


def saved_code(group: str, name: str, saved: str | None, allowed: str | None) -> str | None:
    """Where the code of a run's task or algorithm comes from: "here", or null if it is ours.

    A run that was made with code of ours stays with it. ValueError unless it is ours or the command
    line allows code of the working directory.

    Args:
        saved: what the configuration of the run says, which may come from a stranger.
        allowed: task_code on the command line.
    """
    names, folder = choices(group, builtin=True), CODE[group]
    if name in names and saved != "here":
        return None
    if allowed != "here" and (file := user_code(group, name)):
        raise ValueError(
            f"{WORDS[group]} {name!r} has code of its own, {file.relative_to(Path.cwd())}, which "
            f"is imported only if you allow it: {with_word(TASK_CODE)}"
        )
    if allowed != "here":
        raise ValueError(
            f"unknown {WORDS[group]} {name[:99]!r}: choose one of {', '.join(names)}; "
            f"or give {TASK_CODE}, which imports it from {folder}/ of the working directory"
        )
    if user_code(group, name) is None:
        raise ValueError(f"{TASK_CODE}: {folder}/ of the working directory has no file {name}.py")
    return "here"


def code_words(config: Mapping[str, object]) -> list[str]:
    """What the command line of another process needs for the code of a saved configuration."""
    return [TASK_CODE] if "here" in (config.get(f"{group}_code") for group in CODE) else []
