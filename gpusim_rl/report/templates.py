"""Pages of HTML made of templates, in the look of style.css.

Their words are escaped by Jinja: a stranger may have made the run or the file that they are of.
"""

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def render(template: Path, **words: Any) -> str:
    """The page of a template, which may include style.css.

    words: what it says: plain texts, lists and tables.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**words)
