"""Settings of Sphinx for `make docs`: one site from the README, the pages of the examples and the docstrings.

The source folder is the root of the repository, so that links between pages also work on a code host.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import bertscore_tm
from examples.programs.summaries_report import make_report

project = "bertscore-tm"
author = "The bertscore-tm developers"
copyright = author
version = release = bertscore_tm.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "examples/**.md",
    "examples/docs/tour.ipynb",
    "bertscore_tm/data/SOURCE.md",
]
# Environments have thousands of files, in which Sphinx would look for pages.
exclude_patterns = [".*"]
# The notebook keeps its outputs, which a test compares.
nb_execution_mode = "off"

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
suppress_warnings = ["myst.header"]

autodoc_default_options = {"members": True, "imported-members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
napoleon_use_rtype = False
add_module_names = False

html_theme = "furo"
html_math_renderer = "mathml"
html_title = "bertscore-tm"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# Code blocks without a language are output and usage lines.
highlight_language = "none"
pygments_style = "default"
pygments_dark_style = "monokai"

_CONTENTS = """
```{toctree}
:hidden:
:caption: Metric
A tour in one minute <examples/docs/tour>
Metric: options, idf, rescaling <examples/docs/metric>
Callbacks: validation, early stopping, samples <examples/docs/callbacks>
Several ranks: DDP, FSDP <examples/docs/distributed>
Many machines: torchrun, datasets, Ray, Spark <examples/docs/many_machines>
Encoders: model, layer, precision, long texts <examples/docs/encoders>
```
```{toctree}
:hidden:
:caption: Training
Which signal to train on <examples/docs/training_signals>
Ranking samples <examples/docs/ranking>
The loss and its settings <examples/docs/loss>
Causal language models <examples/docs/causal_lm>
Hugging Face's Trainer <examples/docs/hugging_face_trainer>
Rewards for reinforcement learning <examples/docs/reinforcement_learning>
```
```{toctree}
:hidden:
:caption: Tools
The shell <examples/docs/shell>
Reporting: signature, intervals, report <examples/docs/reporting>
A report to try <https://bertscore-tm.github.io/bertscore-tm/report.html>
From bert-score, torchmetrics or evaluate <examples/docs/migrating>
```
```{toctree}
:hidden:
:caption: Evidence
What the score misses <examples/docs/limitations>
Surprising behaviour of libraries <examples/docs/library_behaviour>
Study: which checkpoint, which signal <examples/research/study/README>
Agreement with people <examples/research/meta_evaluation/README>
Speed and memory <examples/research/benchmarks/RESULTS>
```
```{toctree}
:hidden:
:caption: Reference
examples/docs/site/api/index
examples/README
bertscore_tm/data/SOURCE
examples/docs/site/contributing
CHANGELOG
```
"""


def setup(app: Any) -> None:
    """Register the contents and the equations with Sphinx.

    Args:
        app: Sphinx's application.
    """
    app.connect("source-read", _add_contents)
    app.connect("build-finished", _copy_first_page)
    app.connect("build-finished", _write_report)
    app.add_html_math_renderer("mathml", (_visit_math, None), (_visit_math_block, None))


def _copy_first_page(app: Any, error: Exception | None) -> None:
    """Let the address of the site show the README, which links to pages next to it."""
    if error is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def _write_report(app: Any, error: Exception | None) -> None:
    """Write the report that the README's picture links to, as people get it."""
    if error is None and app.builder.name == "html":
        make_report().save(Path(app.outdir, "report.html"))


def _add_contents(app: Any, name: str, source: list[str]) -> None:
    """Append the contents to the first page, where a code host would show them as text, and link within the site."""
    if name == root_doc:
        source[0] = re.sub(
            r"https://(github|raw\.githubusercontent)\.com/bertscore-tm/bertscore-tm/(blob/)?main/", "", source[0]
        )
        # Hosts of sites leave out folders that start with a dot.
        source[0] = source[0].replace(": .github/CONTRIBUTING.md", ": examples/docs/site/contributing.md") + _CONTENTS


def _visit_math(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _visit_math_block(writer: Any, node: nodes.math_block) -> None:
    equation = tex2mathml(node.astext(), as_block=True)
    # The theme lets a wrapper scroll on narrow screens.
    writer.body.append(f'<div class="math-wrapper"><div class="math">{equation}</div></div>')
    raise nodes.SkipNode
