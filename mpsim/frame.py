"""Rows as a pandas DataFrame, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpsim.errors import MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


def to_frame(
    rows: Sequence[Mapping[str, object]] | Mapping[str, Sequence[object] | NDArray[np.generic]],
) -> pd.DataFrame:
    """A table of rows, or of columns by name. MissingExtraError if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("pandas", "data") from error
    return pd.DataFrame(dict(rows) if isinstance(rows, Mapping) else list(rows))


class Tabular:
    """A value whose rows are flat mappings."""

    __slots__ = ()

    def table(self) -> Sequence[Mapping[str, object]]:
        """One flat mapping a row, units in the names."""
        raise NotImplementedError

    def to_pandas(self) -> pd.DataFrame:
        """The table as a DataFrame, units in the names of its columns. MissingExtraError if pandas
        is not installed.
        """
        return to_frame(self.table())
