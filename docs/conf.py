"""Sphinx's settings of the documentation: `sphinx-build -c docs . docs/_build/html` from the root of the repository.

The source is the whole repository, so that links from docs/ to validation/, plots/ and the README lead on the site where they lead in the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

from mpsim.stamp import stamp  # noqa: E402
from mpsim.version import __version__  # noqa: E402

project = "mpsim"
author = "the authors of mpsim"
version = __version__
release = stamp()
root_doc = "docs/index"
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "site_pages",
]
include_patterns = [
    "docs/*.md",
    "docs/**/*.md",
    "docs/**/*.rst",
    "docs/**/*.ipynb",
    "validation/*.md",
    "validation/measured/*.md",
    "plots/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = ["docs/_build", "**/.*", "**/jupyter_execute", "mpsim", "tests", "build", "dist"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

autosummary_generate = False  # names are described on the page of their package
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
python_use_unqualified_type_names = True
add_module_names = False
maximum_signature_line_length = 80

html_theme = "pydata_sphinx_theme"
html_title = f"mpsim {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "logo": {"text": f"mpsim {version}"},
    "show_version_warning_banner": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_center": ["stamp"],
    "footer_end": [],
    "show_toc_level": 2,
    "navigation_with_keys": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"
templates_path = ["_templates"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
