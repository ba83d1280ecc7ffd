"""Pages that MkDocs makes from other files of the repository, so that they are never out of date.

Home, Contributing and Changes are README.md, CONTRIBUTING.md and CHANGELOG.md. Configuration lists
the keys of conf/, and Decisions the pages of docs/decisions/. Below API is a page for each package.
The site's `llms.txt` is docs/llms.txt, with links to pages as they are called there.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from gpusim_rl.config import sections
from gpusim_rl.config.yaml_keys import keys
from gpusim_rl.core import ranges
from gpusim_rl.envs.load_task import load_task

ROOT = Path(__file__).resolve().parents[1]
CONF = "conf"
INTRODUCTION = """# Configuration

Every key is set on the command line as `KEY=VALUE`, for example `num_envs=256` or
`task.weights.action_rate=0.02`. A group is chosen as `GROUP=NAME`, for example `sim=warp`.

Values are YAML: numbers, words, `true`, `false`, `null`, and lists such as `[0.5,0,0]`.
`python train.py --cfg job` prints all keys with the values of your command line, and those of a
recipe. `--cfg all` prints what Hydra composes before that.
A wrong key or value ends the program with one line that names the choices.

The tables on this page are made from the files in `conf/`. Of a list, each number must be in the
range. The ranges of `task.randomise` depend on the field: see [Randomization](randomisation.md).
"""
TITLES = {
    "common.yaml": "Keys of train.py and play.py",
    "config.yaml": "Keys of train.py",
    "task": "Tasks: task=NAME",
    "terrain": "Rough ground: terrain=NAME",
    "algo": "PPO",
    "reward": "Reward models: reward=NAME",
    "robot": "Robots: robot=NAME",
    "sim": "Simulators: sim=NAME",
    "log": "Metrics: log=NAME",
    "cluster": "Actors in other processes: cluster=NAME",
    "search": "Searches of numbers: search=NAME",
    "play.yaml": "Keys of play.py",
    "gate.yaml": "The release gate and comparisons: keys of play.py mode=gate and mode=ab",
    "serve.yaml": "The server of policies: keys of play.py mode=serve",
}


def on_config(config: Any) -> Any:
    """Put a page for each package below API in the navigation."""
    pages = ["api.md", *({name: f"api/{name}.md"} for name in packages())]
    for entry in config.nav:
        if "API" in entry:
            entry["API"] = pages
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    pages = {"index.md": page("README.md"), "contributing.md": page("CONTRIBUTING.md")}
    pages["changelog.md"] = page("CHANGELOG.md")
    pages["configuration.md"] = configuration()
    pages["decisions/index.md"] = decisions()
    for name, modules in packages().items():
        pages[f"api/{name}.md"] = api(name, modules)
    files.src_uris["llms.txt"].content_string = read("docs/llms.txt").replace(".md)", ".html)")
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def read(path: str) -> str:
    """The text of a file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def page(path: str) -> str:
    """A page that lies beside docs/, with links that hold within it."""
    text = re.sub(r"\]\(docs/([^)]+)\)", r"](\1)", read(path))
    text = text.replace("](decisions/)", "](decisions/index.md)")
    text = text.replace("](CONTRIBUTING.md)", "](contributing.md)")
    return text.replace("](CHANGELOG.md)", "](changelog.md)")


def decisions() -> str:
    """The titles of the decisions, each with a link to its page."""
    lines = ["# Decisions", "", "Why things are as they are: a page for each topic.", ""]
    for file in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({file.name})")
    return "\n".join(lines) + "\n"


# -- API -----------------------------------------------------------------------------------------


def packages() -> dict[str, list[str]]:
    """Package → its modules, dotted; `gpusim_rl` has the modules that lie in no package."""
    modules: dict[str, list[str]] = {}
    package = ROOT / "gpusim_rl"
    files = {*package.rglob("*.py"), *(package / "tasks").rglob("*.py")}  # tasks may be a link
    for file in sorted(files):
        words = file.relative_to(ROOT).with_suffix("").parts
        private = words[-1].startswith("__") or "templates" in words
        if private or file.stat().st_size == 0:
            continue
        name = words[1] if len(words) > 2 else "gpusim_rl"
        modules.setdefault(name, []).append(".".join(words))
    return modules


def api(name: str, modules: list[str]) -> str:
    """The page of a package: the docstrings of its modules."""
    title = "gpusim_rl" if name == "gpusim_rl" else f"gpusim_rl.{name}"
    parts = [f"# {title}", *(f"## {module}\n\n::: {module}" for module in modules)]
    options = "    options:\n      show_root_heading: false\n      heading_level: 3"
    return "\n\n".join(parts[:1] + [f"{part}\n{options}" for part in parts[1:]]) + "\n"


# -- configuration -------------------------------------------------------------------------------


def configuration() -> str:
    """The page with every key of conf/."""
    parts, known = [INTRODUCTION], meanings()
    for name, title in TITLES.items():
        path = ROOT / CONF / name
        parts.append(f"## {title}")
        if path.is_dir():
            for file in sorted(path.glob("*.yaml")):
                parts += [f"### `{CONF}/{name}/{file.name}`", table(file, name, known)]
        else:
            parts.append(table(path, "", known))
    return "\n\n".join(parts) + "\n"


def meanings() -> dict[str, str]:
    """Key → its comment, of the files that explain keys for others."""
    known = {}
    for name in ("config.yaml", "common.yaml", "algo/ppo.yaml", "robot/own.yaml"):
        prefix = name.partition("/")[0] + "." if "/" in name else ""
        known |= {prefix + key.name: key.comment for key in keys(read(f"{CONF}/{name}"))}
    return known


def table(file: Path, group: str, known: dict[str, str]) -> str:
    """The keys of a YAML file as a Markdown table; the comment at its top stands above.

    The key `name` of a group's file is not set by itself, so its comment stands above, too.
    """
    text = file.read_text(encoding="utf-8")
    top = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        top.append(line.lstrip("# "))
    whole = bool(top) and top[0] == "@package _global_"
    top = [] if whole else top
    rows = []
    for key in keys(text):
        if group and key.name == "defaults":  # of files whose keys another one explains
            continue
        if group and key.name in ("name", f"{group}.name"):
            top += [f"{key.comment[:1].upper()}{key.comment[1:]}."] if key.comment else []
            continue
        name = key.name if whole or not group else f"{group}.{key.name}"
        value, says = key.value.replace("|", "\\|"), escape(meaning(name, key.comment, known))
        rows.append(f"| `{name}` | `{value}` | {allowed(name, file)} | {says} |")
    head = ["| key | default | range | meaning |", "|---|---|---|---|"] if rows else []
    return escape(" ".join(top)) + "\n\n" + "\n".join(head + rows)


def allowed(name: str, file: Path) -> str:
    """What a number of a YAML file may be, and the names below a key; "" if it is no number."""
    others = {"play.yaml": ranges.PLAY, "gate.yaml": ranges.GATE}
    group = file.parent.name
    chosen = {group: file.stem} if group in sections.SETTINGS else {}
    limits = others.get(file.name, sections.table(**chosen))
    if group == "task":
        own = load_task(file.stem).ranges
        limits = limits | {f"task.{key}": entry for key, entry in own.items()}
    return ranges.allowed(name, limits) or ranges.allowed(f"{name}.*", limits)


def meaning(name: str, comment: str, known: dict[str, str]) -> str:
    """The comment of a key, or that of the same key elsewhere if it has none but a unit."""
    if comment and not comment.startswith("["):
        return comment
    near = known.get(name) or known.get(name.rpartition(".")[0], "")
    return " ".join(part for part in (near, "" if "[" in near else comment) if part)


def escape(text: str) -> str:
    """Text in which no character is Markdown for a cell's end or for HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;")
