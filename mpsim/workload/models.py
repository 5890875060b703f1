"""The catalog: published models by name, each with the source of its figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, cast

from mpsim import structs
from mpsim.errors import WorkloadError, nearest
from mpsim.memo import remembered
from mpsim.shipped import load_catalog
from mpsim.workload.transformer import Transformer
from mpsim.workload.variants import Experts, LatentAttention, StateMixer, VisionTower


def model(name: str) -> Transformer:
    """Return the published model of `model_names` called `name`.

    Raises WorkloadError: if there is none of that name; it suggests the nearest.

    Examples
    --------
    >>> model("gpt3-175b").layers
    96
    """
    return _built(_entry(name).name)


@remembered(128)  # models that stay built
def _built(name: str) -> Transformer:
    return transformer_of(*_entry(name)[:2])


def model_year(name: str) -> int:
    """Year in which the published model `name` came out; WorkloadError for an unknown one.

    Examples
    --------
    >>> model_year("gpt3-175b")
    2020
    """
    return _entry(name).year


def model_names(*, aliases: bool = False) -> tuple[str, ...]:
    """Names of all published models of the catalog, sorted; twins of the same sizes if asked."""
    known = sorted(_catalog().items())
    return tuple(name for name, entry in known if aliases or name == entry.name)


class _Entry(NamedTuple):
    """A model of the catalog: its fields, and the year it came out."""

    name: str
    fields: Mapping[str, object]
    year: int


def _entry(name: str) -> _Entry:
    if name in (known := _catalog()):
        return known[name]
    raise WorkloadError(f"no model {name!r}; {nearest(name, known)}")


@remembered(1)
def _catalog() -> Mapping[str, _Entry]:
    models: dict[str, _Entry] = {}
    for family, data in load_catalog("mpsim.workload.catalog"):
        for name, published in _read_family(family, data).items():
            if name in models:
                raise WorkloadError(f"catalog/{family}.yaml: model {name!r} is defined twice")
            models[name] = published
        models |= {alias: models[name] for alias, name in data.get("aliases", {}).items()}
    return MappingProxyType(models)


def _read_family(family: str, data: object) -> dict[str, _Entry]:
    """Every model of one file: the fields in ``common``, overridden by its own."""
    content, models = cast(Mapping[str, Mapping[str, object]], data), {}
    for name, own in content["models"].items():
        fields = dict(content["common"]) | dict(cast(Mapping[str, object], own))
        unsourced = [key for key in ("source", "as_of", "year") if not fields.get(key)]
        if unsourced:
            raise WorkloadError(f"catalog/{family}.yaml: model {name!r} lacks {unsourced}")
        models[name] = _Entry(name, fields, int(cast(int, fields.pop("year"))))
    return models


def transformer_of(name: str, fields: Mapping[str, object]) -> Transformer:
    """Build a model from a mapping of its fields, as a YAML file gives it.

    `fields`: fields of `Transformer`, all that have no default at least; `moe`, `mla`, `state` and
    `vision` are mappings of their own fields.

    Raises WorkloadError: if a field is unknown or missing, or `Transformer` refuses the values.
    """
    parts = {key: _part(key, fields[key]) for key in _PARTS if fields.get(key) is not None}
    mistakes = _misfits(Transformer, fields, "", given={"name"})
    if mistakes:
        raise WorkloadError("\n".join(f"model {name!r}: {mistake}" for mistake in mistakes))
    return Transformer(**{**fields, **parts, "name": name})  # type: ignore[arg-type]


_Part: TypeAlias = Experts | LatentAttention | StateMixer | VisionTower
_PARTS: Mapping[str, type[_Part]] = MappingProxyType(
    {"moe": Experts, "mla": LatentAttention, "state": StateMixer, "vision": VisionTower}
)


def _part(key: str, fields: object) -> _Part:
    """Build what the mapping under `key` describes."""
    if not isinstance(fields, Mapping):
        raise WorkloadError(f"{key} is {fields!r}; needed a mapping of its fields")
    if mistakes := _misfits(_PARTS[key], fields, f"{key}."):
        raise WorkloadError("\n".join(mistakes))
    return _PARTS[key](**fields)


def _misfits(
    kind: type[Transformer | _Part],
    fields: Mapping[str, object],
    prefix: str,
    *,
    given: Collection[str] = (),
) -> list[str]:
    """Say which fields `kind` does not have, and which it has to have."""
    known = {field.name: field for field in structs.fields(kind)}
    mistakes = [
        f"no field {prefix + key!r}; {nearest(key, known)}" for key in fields if key not in known
    ]
    return mistakes + [
        f"{prefix}{key} is missing"
        for key, field in known.items()
        if field.default is structs.MISSING and key not in fields and key not in given
    ]
