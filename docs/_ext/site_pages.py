"""Pages of the site that are made when it is built: sections, gallery, Python API, and the accuracy table of the landing page.

They are written under docs/site/, which git ignores, before Sphinx looks for its sources; nothing in them is typed twice:
sections come from docs/index.md, pictures from plots/, names from `mpsim.__all__` and the packages, errors from validation/accuracy.json.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
INDEX = ROOT / "docs" / "index.md"
PAGES = ROOT / "docs" / "site"

# What a user imports, in the order of a simulation; `mpsim` itself stands before them.
PACKAGES = (
    "scenario hardware workload framework schedule simulate training serving result plot study"
    " formats measure calibrate validate report units errors"
).split()
LARGEST_FAMILIES = 8
DIRECTIVES = {"Functions": "autofunction", "Classes": "autoclass", "Exceptions": "autoexception"}
_OPTIONS = {"Classes": ("   :members:",)}

LINK = re.compile(r"\]\((?!\w+://|#)([^)#]+)(#[^)]*)?\)")


def sections() -> dict[str, str]:
    """Headings of docs/index.md of the second level, each with its text."""
    parts = re.split(r"^## (.+)$", INDEX.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def linked(text: str) -> list[str]:
    """Documents that a text in docs/ links, relative to the root of the repository, each once, in order."""
    found: dict[str, None] = {}
    for target, _ in LINK.findall(text):
        path = (INDEX.parent / target).resolve()
        if path.suffix in (".md", ".ipynb"):
            found[path.relative_to(ROOT).as_posix()] = None
    return list(found)


def toctree(documents: list[str], hidden: bool = True) -> str:
    """A table of contents of documents named from the root, for a page in Markdown."""
    lines = [f"/{document}" for document in documents]
    options = ":hidden:\n:maxdepth: 1\n" if hidden else ":maxdepth: 1\n"
    return "\n".join(["```{toctree}", f"{options}", *lines, "```", ""])


def accuracy_table() -> str:
    """Errors on published runs: all, dense ones that leave nothing open, and the families with most rows."""
    committed = json.loads((ROOT / "validation" / "accuracy.json").read_text(encoding="utf-8"))
    families = {name: family for name, family in committed["families"].items() if family["rows"]}
    rows = sum(family["rows"] for family in families.values())
    everything = {"rows": rows} | {
        score: sum(family["rows"] * family[score] for family in families.values()) / rows
        for score in ("mean", "bias", "within_10")
    }
    lines = [
        "| published runs | measured steps | mean error | median | bias | within 10 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        f"| **all {len(families)} families** " + _scores(everything, bold=True),
        "| **dense, nothing left open** " + _scores(committed["pooled"], bold=True),
    ]
    largest = sorted(families, key=lambda name: -families[name]["rows"])[:LARGEST_FAMILIES]
    lines += [f"| {name} " + _scores(families[name]) for name in largest]
    return "\n".join(lines)


def _scores(family: dict[str, Any], bold: bool = False) -> str:
    cells = [
        f"{family['rows']:,}",
        f"{family['mean']:.1%}",
        f"{family['median']:.1%}" if "median" in family else "",
        f"{family['bias']:+.1%}".replace("-0.0%", "0.0%").replace("+0.0%", "0.0%"),
        f"{family['within_10']:.0%}",
    ]
    return "".join(f"| **{cell}** " if bold and cell else f"| {cell} " for cell in cells) + "|"


def section_pages() -> dict[str, str]:
    """A page for each section of the index, with the links of its table and all of them in the navigation."""
    pages = {}
    for title, text in sections().items():
        documents = linked(text)
        if title == "Reference":
            documents.append("docs/site/api/index.rst")
        body = LINK.sub(lambda link: f"](../{link[1]}{link[2] or ''})", text)
        pages[f"{title.lower()}.md"] = f"# {title}\n{body}\n{toctree(documents)}"
    return pages


def gallery() -> tuple[str, dict[str, str]]:
    """The page of plots/ as a grid of pictures by topic, and a page a script: question, picture, code."""
    text = (ROOT / "plots" / "README.md").read_text(encoding="utf-8")
    entry = re.compile(r"\*\*(.+?)\*\* \[.+?\]\((.+?)\)\n\n!\[(.+?)\]\((.+?)\)")
    head, *topics = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    lines = [head]
    pages = {}
    for topic, entries in zip(topics[::2], topics[1::2], strict=True):
        lines += [f"## {topic}", "", "::::{grid} 1 2 3 3", ":gutter: 2", ""]
        for question, script, title, picture in entry.findall(entries):
            name = script.removesuffix(".py").replace("/", "-").replace("plot_", "")
            pages[f"gallery/{name}.md"] = (
                f"# {title.rstrip('.')}\n\n{question}\n\n![{title}](/plots/{picture})\n\n"
                f"```{{literalinclude}} /plots/{script}\n:language: python\n```\n"
            )
            lines += [
                ":::{grid-item-card}",
                f":img-top: /plots/{picture}",
                f":img-alt: {title}",
                f":link: /docs/site/gallery/{name}",
                ":link-type: doc",
                "",
                question,
                ":::",
                "",
            ]
        lines += ["::::", ""]
    return "\n".join([*lines, toctree([f"docs/site/{name}" for name in pages])]), pages


def api_pages() -> dict[str, str]:
    """Pages of the Python API: the front door and each package, a page each."""
    pages = {}
    names = ["mpsim", *(f"mpsim.{package}" for package in PACKAGES)]
    for name in names:
        module = importlib.import_module(name)
        summary = inspect.getdoc(module) or ""
        pages[f"api/{name}.rst"] = _api_page(name, summary, _offered(module), module)
    index = [
        "Python API",
        "==========",
        "",
        "``import mpsim`` is the front door; the packages behind it are listed from the scenario that a person writes to what is made of its result.",
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
        *(f"   {name}" for name in names),
    ]
    pages["api/index.rst"] = "\n".join(index) + "\n"
    return pages


def _offered(module: Any) -> list[str]:
    """Names of a package's `__all__`; of a single module what it defines itself."""
    own = (
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
    )
    return list(
        getattr(module, "__all__", sorted(name for name in own if not name.startswith("_")))
    )


def _api_page(name: str, summary: str, names: list[str], module: Any) -> str:
    """Names of a package in a table by kind, then each with its docstring; what the front door has is described there."""
    front = importlib.import_module("mpsim")
    kinds: dict[str, list[str]] = {kind: [] for kind in DIRECTIVES}
    constants = []
    for member in names:
        value = getattr(module, member)
        if name != "mpsim" and getattr(front, member, None) is value:
            kinds.setdefault("Front door", []).append(member)
        elif inspect.isclass(value):
            kind = "Exceptions" if issubclass(value, BaseException) else "Classes"
            kinds[kind].append(member)
        elif inspect.isroutine(value):
            kinds["Functions"].append(member)
        else:
            constants.append(member)
    lines = [name, "=" * len(name), "", summary, "", f".. currentmodule:: {name}", ""]
    there = kinds.pop("Front door", [])
    if there:
        lines += [
            "In :doc:`mpsim` itself: " + ", ".join(f"``{member}``" for member in there) + ".",
            "",
        ]
    if constants:
        lines += ["Constants: " + ", ".join(f"``{member}``" for member in constants) + ".", ""]
    for members in filter(None, kinds.values()):
        lines += [
            ".. autosummary::",
            "   :nosignatures:",
            "",
            *(f"   {one}" for one in members),
            "",
        ]
    for kind, members in kinds.items():
        if members:
            lines += [kind, "-" * len(kind), ""]
        for member in members:
            lines += [f".. {DIRECTIVES[kind]}:: {member}", *_OPTIONS.get(kind, ()), ""]
    return "\n".join(lines)


def write_pages() -> None:
    """Write every made page; one whose text is as it was keeps its date, so that Sphinx reads it no second time."""
    for name, text in (section_pages() | gallery()[1] | api_pages()).items():
        path = PAGES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def fill(app: Any, docname: str, source: list[str]) -> None:
    """Put the accuracy table and the navigation into the landing page, and the grid into the gallery."""
    if docname == app.config.root_doc:
        documents = [f"docs/site/{title.lower()}.md" for title in sections()]
        documents.insert(-1, "plots/README.md")
        text = source[0].replace("<!-- accuracy-table -->", accuracy_table())
        source[0] = f"{text}\n{toctree(documents)}"
    elif docname == "plots/README":
        source[0] = gallery()[0]


def skip_builtins(
    app: Any, what: str, name: str, value: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what an enumeration of strings has from `str`, and what only the language calls."""
    plain = getattr(str, name, None)
    inherited = (
        plain is not None
        and getattr(value, "__name__", "") == name
        and not hasattr(value, "__module__")
    )
    return True if inherited or name == "maketrans" or name.startswith("__") else None


def lead_in(app: Any, failed: Exception | None) -> None:
    """The root of the site leads to the landing page, which is two folders down because sources keep their places."""
    if failed is None and app.builder.name == "html":
        target = f"{app.config.root_doc}.html"
        (Path(app.outdir) / "index.html").write_text(
            f'<!doctype html><meta charset="utf-8"><title>mpsim</title>'
            f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">mpsim</a>\n',
            encoding="utf-8",
        )


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx; pages are written first, before it lists its sources."""
    write_pages()
    app.connect("source-read", fill)
    app.connect("autodoc-skip-member", skip_builtins)
    app.connect("build-finished", lead_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
