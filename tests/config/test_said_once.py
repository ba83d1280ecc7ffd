"""Each number of the configuration stands in one place: a YAML file, and no default in the code."""

import importlib
import inspect
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from gpusim_rl.config import nested_dict
from gpusim_rl.config.compose import build
from gpusim_rl.core.sections import arguments, require
from gpusim_rl.deploy import describe, runtime
from gpusim_rl.training import metric_writers
from gpusim_rl.web.requirements import VERSIONS
from tests.worlds import ROOT, TASKS

CONF = ROOT / "conf"
EACH_TASK = [("task", name) for name in TASKS]
EACH_SIM = [("sim", file.stem) for file in sorted((CONF / "sim").glob("*.yaml"))]
NOT_GIVEN = (None, "", (), {})  # defaults that say nothing: None and empty


def leaves(tree: dict[str, Any]) -> dict[str, Any]:
    """Dotted key → value, of all that is no mapping with entries; lists as tuples."""
    return {key: frozen(value) for key, value in nested_dict.leaves(tree).items()}


def frozen(value: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


@cache
def configured() -> set[tuple[str, Any]]:
    """(last word of a key, value) of every command's composed configuration."""
    lines = [("config", [f"{group}={name}"]) for group, name in (*EACH_TASK, *EACH_SIM)]
    built = [build(*line) for line in (*lines, ("play", ["robot=go1"]))]
    pairs = {(key, value) for tree in built for key, value in leaves(tree).items()}
    # the device of actors is another thing than that of tensors, whose default is a CPU, too
    others = ("hydra.", "cluster.device")
    return {(key.rpartition(".")[2], x) for key, x in pairs if not key.startswith(others)}


def defaults(module: Any) -> Iterator[tuple[str, str, Any]]:
    """(where, name, default) of every parameter of the functions and constructors of a module."""
    for thing in vars(module).values():
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        own = [thing]
        if inspect.isclass(thing):
            own += [f for name, f in vars(thing).items() if name != "__init__"]
        for one in own:
            if not callable(one):
                continue
            try:
                parameters = inspect.signature(one).parameters.values()
            except (TypeError, ValueError):  # such as an exception's constructor
                continue
            where = f"{module.__name__}.{getattr(one, '__qualname__', one)}"
            yield from ((where, p.name, p.default) for p in parameters if p.default is not p.empty)


def twice(module: Any, known: set[tuple[str, Any]]) -> list[str]:
    """The defaults of a module that a YAML file states, too."""
    typed = {(key, type(x), x) for key, x in known}
    return [
        f"{where}: {name}={value!r}"
        for where, name, value in defaults(module)
        if value.__hash__ and not any(value is x or value == x for x in NOT_GIVEN)
        if (name, type(value), value) in typed
    ]


def modules() -> Iterator[Any]:
    """Every module of the package that this machine can import."""
    for file in sorted((ROOT / "gpusim_rl").rglob("*.py")):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        try:
            yield importlib.import_module(name)
        except ImportError:
            continue


def test_no_number_is_stated_twice():
    """No default of a function or a constructor equals the value of its key in YAML."""
    known = configured()
    lines = [line for module in modules() for line in twice(module, known)]
    assert lines == []


def test_lists_and_limits_agree():
    """Kinds of logs, the format of files, and versions of the web page's packages."""
    files = {file.stem for file in (CONF / "log").glob("*.yaml")}
    assert {"auto", *metric_writers.LOGGERS, "none"} == files
    assert runtime.FORMAT == describe.FORMAT
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    web = {f"{name}{versions}" for name, versions in VERSIONS.items()}
    assert web == {*project["optional-dependencies"]["web"]}


def test_no_number_is_stated_twice_in_yaml():
    """A file repeats no value of the files that it is composed from."""
    for group in ("task", "sim", "robot", "log"):
        for file in sorted((CONF / group).glob("*.yaml")):
            assert repeated(file, group) == [], file
    shared = leaves(yaml.safe_load((CONF / "common.yaml").read_text()))
    for name in ("config", "play"):
        own = leaves(yaml.safe_load((CONF / f"{name}.yaml").read_text()))
        assert own.items() & shared.items() == set()


def repeated(file: Any, group: str) -> list[str]:
    """The keys of a group's file whose values are those of the files below it."""
    own = yaml.safe_load(file.read_text())
    below: dict[str, Any] = {}
    names = [name for name in own.pop("defaults", []) if isinstance(name, str)]
    for name in names:
        if name != "_self_":
            below |= leaves(yaml.safe_load((CONF / group / f"{name}.yaml").read_text()))
    if group == "task":
        below = leaves(yaml.safe_load((CONF / "config.yaml").read_text()))
        below |= leaves({"algo": yaml.safe_load((CONF / "algo" / "ppo.yaml").read_text())})
    return [key for key, value in leaves(own).items() if key in below and below[key] == value]


def test_what_is_missing_is_named():
    """A key that a file lacks, or that the constructor does not know, is an error in one line."""

    class Walk:
        def __init__(self, *, gait: float, text: str = ""): ...

    assert arguments(Walk, {"gait": 2.0}, "task", "task/walk") == {"gait": 2.0}
    with pytest.raises(ValueError, match=r"^task\.gait is missing in conf/task/walk\.yaml$"):
        arguments(Walk, {"text": "x"}, "task", "task/walk")
    says = r"^unknown key 'task\.gate' in conf/task/walk\.yaml: choose one of gait, text$"
    with pytest.raises(ValueError, match=says):
        arguments(Walk, {"gait": 2.0, "gate": 1}, "task", "task/walk")
    with pytest.raises(ValueError, match=r"^seed is missing in conf/config\.yaml$"):
        require({"device": "cpu"}, ("device", "seed"), "", "config")
