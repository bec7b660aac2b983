"""The documentation site: `make docs` builds it, and a warning fails the build."""

import sys
from pathlib import Path

import fuprune

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "fuprune"
author = "The fuprune authors"
copyright = "The fuprune authors, Apache License 2.0"
release = version = fuprune.__version__

extensions = [
    "public_names",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "README.md"]
smartquotes = False  # defaults of keys are quoted as Python quotes them

html_theme = "furo"
html_title = f"fuprune {release}"
html_static_path: list[str] = []
html_extra_path = ["explorer.html"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
# The notebook holds the output of a run that a test repeats.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
