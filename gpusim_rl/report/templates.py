"""Pages of HTML made of templates, in the look of style.css.

Their words are escaped by Jinja: a stranger may have made the run or the file that they are of.
"""

from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def render(template: Path, **words: Any) -> str:
    """The page of a template, which may include style.css; words are texts, lists and tables."""
    return environment(template.parent).get_template(template.name).render(**words)


@cache  # a template is compiled once
def environment(folder: Path) -> Any:
    """Jinja's environment of the templates in a folder."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([folder, FOLDER])
    rules: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=loader, undefined=StrictUndefined, **rules)
