"""The ``model:`` section: a preset, a preset with changes, or a model spelled out."""

from collections.abc import Mapping
from typing import Any, Final

from mpsim import structs, workload
from mpsim.errors import Problem, ScenarioError, WorkloadError, nearest
from mpsim.nouns import hints
from mpsim.scenario.fields import Fields, Name, Section
from mpsim.shipped import say

REQUIRED: Final = ("layers", "hidden", "heads", "vocab")
_PARTS: Final[Mapping[str, type]] = {
    "moe": workload.Experts,
    "mla": workload.LatentAttention,
    "state": workload.StateMixer,
    "vision": workload.VisionTower,
}
_APART: Final = ("source", "as_of")  # of the catalog
FFN_RATIO: Final = 4  # of a transformer that does not say (Vaswani et al. 2017)


def _section(noun: type, title: str, about: str, first: str = "", **more: Any) -> Any:
    """A section that may leave out any field of a noun of the model, `first` ones on top; `more`:
    fields that it has otherwise, or beside those.
    """
    kinds = {**dict.fromkeys(first.split()), **hints(noun), **more}
    fields = {key: kind | None for key, kind in kinds.items() if key not in _APART}
    said = {"__doc__": about, "__module__": __name__, "noun": noun, "__annotations__": fields}
    return type(title, (Section,), {**dict.fromkeys(fields), **said})


_MIXTURE = "Experts in place of the MLP of some or all layers; a preset gives fields left out."
_COMPRESSED = "Attention through compressed keys and values; a preset gives fields left out."
_MIXER = "Mixer with a state, of letters S and M of layer_pattern; a preset gives fields left out."
_TOWER = "Encoder of images, on ranks of the first stage; a preset gives fields left out."
_Figures = _section(
    workload.Transformer,
    "Figures",
    "Sizes of a model.",
    "preset name",
    preset=Name,
    name=Name,
    state=_section(workload.StateMixer, "StateSpace", _MIXER),
    vision=_section(workload.VisionTower, "Vision", _TOWER),
    moe=_section(workload.Experts, "MixtureOfExperts", _MIXTURE, "experts top_k"),
    mla=_section(workload.LatentAttention, "MultiLatentAttention", _COMPRESSED, "q_lora_rank"),
)


class ModelChoice(_Figures):  # type: ignore[misc, valid-type]
    """A transformer: a preset by name, fields that replace those of a preset, or all of them."""

    preset: Name | None = None
    """A published model (see 'mpsim show models')."""
    name: Name | None = None
    """Name; left out, the preset's."""

    def given(self) -> Fields:
        """Plain fields of `Transformer` that were written, by name."""
        names = {field.name for field in structs.fields(workload.Transformer)} - {"name", *_PARTS}
        return {
            name: value
            for name in names & type(self).model_fields.keys()
            if (value := getattr(self, name)) is not None
        }

    def resolve(self) -> workload.Transformer:
        """The model meant. ScenarioError: unknown preset, missing or contradicting fields."""
        problems = [*_check_known(self), *_check_fields(self), *_check_parts(self)]
        if problems:
            raise ScenarioError(problems)
        try:
            return _modified(self) if self.preset is not None else _spelled_out(self)
        except WorkloadError as error:
            lines = str(error).split("\n")
            raise ScenarioError([Problem(line, key="model") for line in lines]) from error


def _check_known(choice: ModelChoice) -> list[Problem]:
    if choice.preset is None or choice.preset in workload.model_names(aliases=True):
        return []
    near = nearest(choice.preset, workload.model_names(aliases=True))
    return [Problem(f"unknown model {choice.preset[:60]!r}; {near}", key="model.preset")]


def _check_fields(choice: ModelChoice) -> list[Problem]:
    if choice.preset is not None:
        return []
    needed = [*REQUIRED, "ffn_hidden"] if choice.gated_mlp else REQUIRED
    missing = [name for name in needed if getattr(choice, name) is None]
    if not missing:
        return []
    message = f"lacks {', '.join(missing)}; give them, or a preset such as 'preset: gpt3-175b'"
    return [Problem(message, key="model")]


def _check_parts(choice: ModelChoice) -> list[Problem]:
    """Say what moe, mla, state and vision have to give where no preset gives it."""
    known = choice.preset in workload.model_names(aliases=True)
    base = workload.model(str(choice.preset)) if known else None
    return [
        Problem(f"lacks {', '.join(missing)}; give them", key=f"model.{key}")
        for key, kind in _PARTS.items()
        if (part := getattr(choice, key)) is not None and getattr(base, key, None) is None
        if (missing := [name for name in _needed(key, kind) if getattr(part, name) is None])
    ]


def _needed(key: str, kind: type) -> list[str]:
    """Fields without a default; experts are as wide as the MLP where nobody says."""
    needed = [field.name for field in structs.fields(kind) if field.default is structs.MISSING]
    return [name for name in needed if (key, name) != ("moe", "ffn_hidden")]


def _parts(choice: ModelChoice, base: workload.Transformer | None, ffn_hidden: int) -> Fields:
    """Experts, latent attention and state mixer as written, over those of the preset."""
    parts: Fields = {}
    for name, kind in _PARTS.items():
        usual = {"ffn_hidden": ffn_hidden} if kind is workload.Experts else {}
        section, known = getattr(choice, name), getattr(base, name, None)
        if section is not None:
            own = {key: value for key, value in vars(section).items() if value is not None}
            parts[name] = structs.replace(known, **own) if known else kind(**{**usual, **own})
    return parts


def _width(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise WorkloadError(say("scenario.uneven_heads", hidden=hidden, heads=heads))
    return hidden // heads


def _spelled_out(choice: ModelChoice) -> workload.Transformer:
    fields = choice.given()
    hidden, heads = fields["hidden"], fields["heads"]
    fields.setdefault("kv_heads", heads)
    fields.setdefault("ffn_hidden", FFN_RATIO * hidden)
    if "head_dim" not in fields:
        latent = choice.mla.v_head_dim if choice.mla is not None else None
        fields["head_dim"] = latent or _width(hidden, heads)
    fields |= _parts(choice, None, fields["ffn_hidden"])
    return workload.Transformer(**{**fields, "name": choice.name or "custom"})


def _modified(choice: ModelChoice) -> workload.Transformer:
    """A preset with changes; what the preset derives from a changed field is derived again."""
    assert choice.preset is not None
    base = workload.model(choice.preset)
    given = choice.given()
    if choice.name is not None:
        given["name"] = choice.name
    fields = {**_derived(base, given), **given}
    fields |= _parts(choice, base, fields.get("ffn_hidden", base.ffn_hidden))
    return structs.replace(base, **fields) if fields else base


def _derived(base: workload.Transformer, given: Fields) -> Fields:
    hidden, heads = given.get("hidden", base.hidden), given.get("heads", base.heads)
    derived: Fields = {}
    square = base.heads * base.head_dim == base.hidden
    if square and (hidden, heads) != (base.hidden, base.heads) and "head_dim" not in given:
        derived["head_dim"] = _width(hidden, heads)
    if heads != base.heads and base.kv_heads == base.heads:
        derived["kv_heads"] = heads
    if hidden != base.hidden and base.ffn_hidden == FFN_RATIO * base.hidden:
        derived["ffn_hidden"] = FFN_RATIO * hidden
    return derived
