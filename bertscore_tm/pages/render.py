"""HTML pages in one file: a template, styles, scripts and data."""

import gzip
import json
import math
import re
from base64 import b64encode
from datetime import date
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from bertscore_tm.utilities.untrusted_text import for_page
from bertscore_tm.utilities.version import __version__

_FOLDER = Path(__file__).parent
_IMPORT = re.compile(r'^import {[^}]*} from "\./(.+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def render_page(template: str, data: dict[str, Any], script: str) -> str:
    """Fill a template that extends ``base.jinja``; its style sheet, if it has one, has its name.

    What the template shows is HTML; everything else is JSON, compressed and in base 64, which holds no markup.
    ``script`` is the JavaScript module of this kind of page.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    escaped = _escape(data)
    # allow_nan=False raises an error instead of writing NaN, which a browser's JSON does not read.
    document = json.dumps(escaped, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    joined_script = _join_modules(script)
    styles = []
    for path in (_FOLDER / "tokens.css", (_FOLDER / template).with_suffix(".css")):
        if path.exists():
            styles.append(path.read_text(encoding="utf-8"))
    # The browser runs only the script with this hash, and none that a text might bring in.
    script_hash = b64encode(sha256(joined_script.encode()).digest()).decode()
    return environment.get_template(template).render(
        data=escaped,
        # The time in the header of gzip is left out, so that equal data have equal pages.
        packed=b64encode(gzip.compress(document, mtime=0)).decode(),
        style="\n".join(styles),
        script=joined_script,
        script_hash=script_hash,
        date=date.today().isoformat(),
        version=__version__,
    )


def _join_modules(name: str) -> str:
    """Return a JavaScript module as one script, after the modules that it imports, each once.

    A page has no other files, so their imports and exports are removed, and all names are in one scope. Each name is
    therefore that of one thing in all modules of a page.
    """
    modules: dict[str, str] = {}

    def add(module: str) -> None:
        """Add a module after those that it imports. The imports have no cycles."""
        text = (_FOLDER / module).read_text(encoding="utf-8")
        for imported in _IMPORT.findall(text):
            if imported not in modules:
                add(imported)
        modules[module] = _EXPORT.sub("", _IMPORT.sub("", text))

    add(name)
    # The function is async, because the modules await their data.
    return "\n".join(["(async () => {", '"use strict";', *modules.values(), "})();"])


def _escape(value: Any) -> Any:
    """Return data with texts as a page shows them, and ``None`` for NaN and infinity, which JSON does not have."""
    if isinstance(value, str):
        return for_page(value)
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escape(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_frame(page: str) -> str:
    """Return a page as an element of another, such as a notebook, that keeps its styles and scripts to itself."""
    return (
        '<iframe title="BERTScore" sandbox="allow-scripts" width="100%" height="640" '
        f'style="border: 0" srcdoc="{escape(page)}"></iframe>'
    )
