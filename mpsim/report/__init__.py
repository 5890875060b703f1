"""The report: one page that shows results, and the explorer, the same page with settings.

A page is drawn from one JSON document (`document`): summaries as ``mpsim run --json`` prints them,
and sections of blocks made from the data models. Nothing on the page has another source, so its
numbers are those of the document.
"""

from mpsim.report.document import AnyResult, document, page_of, report
from mpsim.report.markup import LARGEST, page
from mpsim.report.studies import is_study

__all__ = ["LARGEST", "AnyResult", "document", "is_study", "page", "page_of", "report"]
