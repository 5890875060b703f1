"""The serving section: engine, precision, replicas, requests and what they were promised."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from mpsim.scenario import fields
from mpsim.scenario.fields import Field, Read
from mpsim.scenario.servers import preset_of
from mpsim.units import Dimension

Degree = Annotated[int, Field(ge=1, le=4096)]
Probability = Annotated[float, Field(ge=0, le=1, strict=False)]

WeightFormat = Literal["bf16", "fp16", "fp8", "fp8_block", "int8", "w4a16", "nvfp4", "mxfp4"]
CacheFormat = Literal["bf16", "fp16", "fp8", "int8"]


class EngineChoice(fields.PresetSection):
    """The serving engine: a preset, and fields of it to replace, written beside it."""

    preset: Annotated[fields.Name, Read(preset_of, "after")] = "vllm-async"
    """An engine by name (see 'mpsim show engine'); vllm, sglang and trtllm mean the newest."""


class Workload(fields.Section):
    """The stream of requests."""

    arrival: Literal["poisson", "gamma", "closed", "all-at-once", "trace"] = "poisson"
    """How requests come: at random, in bursts, from waiting users, all at once, by a file; implied
    by concurrency and by trace."""
    rate: Annotated[float, Field(gt=0, le=1e9, strict=False)] | None = None
    """Requests a second, of poisson and gamma arrivals."""
    burstiness: Annotated[float, Field(gt=0, le=1000, strict=False)] = 1.0
    """Shape of gamma arrivals: 1 is poisson, less comes in bursts."""
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Users of a closed loop."""
    requests: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """How many requests; left out, 1,000, ten for each user of a closed loop, or all of a trace. Of
    200,000 and more none is kept: percentiles are within 0.5 %."""
    duration: fields.Span | None = None
    """In place of requests: how long they come. Those that came are served to their end."""
    warmup: fields.Span | None = None
    """Start of the run that counts in no latency, rate or goodput: its requests and tokens."""
    prompt: fields.LengthChoice = fields.LengthChoice(tokens=1024)
    """Tokens of a prompt; with turns, those that each turn adds to what went before it."""
    output: fields.LengthChoice = fields.LengthChoice(tokens=256)
    """Tokens to generate."""
    trace: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """A file of requests: Azure, BurstGPT or plain CSV, Mooncake JSONL; relative to this."""
    shared_prefix: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    """Leading tokens of every prompt that requests of one group share."""
    prefix_groups: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    """Groups of requests with a prefix of their own."""
    turns: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Requests of a session, one after the other: the prompt of each is all that went before, its
    answers included, and new tokens."""
    think_time: fields.Span = 0.0
    """From an answer to the same user's next request on average, exponentially distributed: between
    the turns of a session, and the requests of a closed loop."""

    @classmethod
    def _before(cls, data: object) -> object:
        """Users and files come in one way each."""
        if isinstance(data, Mapping) and "arrival" not in data and data.get("rate") is None:
            said = [how for key, how in _USES.items() if data.get(key) is not None]
            return {**data, "arrival": said[0]} if len(said) == 1 else data
        return data

    def _after(self) -> Self:
        for key, how in _USES.items():
            is_given = getattr(self, key) is not None
            is_used = self.arrival == how or (key, self.arrival) == ("rate", "gamma")
            if is_used and not is_given:
                raise fields.contradiction("lacks", self, key=key, example=_EXAMPLES[key])
            if is_given and not is_used:
                raise fields.contradiction("idle_arrival", self, key=key, use=how)
        closed, at_once = self.arrival == "closed", self.arrival == "all-at-once"
        sessions, timed = self.turns > 1, self.duration is not None
        rules = {
            "idle_burstiness": self.burstiness != 1.0 and self.arrival != "gamma",
            "idle_turns": sessions and (at_once or self.arrival == "trace"),
            "closed_turns": sessions and closed and timed,
            "idle_thinking": self.think_time and not sessions and not closed,
            "counted_twice": timed and self.requests is not None,
            "duration_at_once": timed and at_once,
            "warmup_at_once": self.warmup is not None and at_once,
            "long_warmup": timed and (self.warmup or 0.0) >= (self.duration or 0.0),
        }
        for name in (rule for rule, is_broken in rules.items() if is_broken):
            raise fields.contradiction(name, self)
        return self


_EXAMPLES = {"rate": "rate: 4", "concurrency": "concurrency: 64", "trace": "trace: requests.csv"}
_USES = {"rate": "poisson", "concurrency": "closed", "trace": "trace"}


class ServiceLevel(fields.Section):
    """Limits that requests are promised."""

    ttft: fields.Time | None = None
    """Time to the first token."""
    tpot: fields.Time | None = None
    """Time of each further token."""
    share: fields.Share = 0.9
    """Share of the requests that has to keep all limits."""


class PoolChoice(fields.Section):
    """Layout of the instances of one pool."""

    accelerator: fields.Name | None = None
    """Accelerator of this pool's nodes, whose links are those of the cluster (see 'mpsim show
    accelerators'); left out, that of the cluster."""
    price_per_hour: fields.PriceRate | None = None
    """Price of such an accelerator; left out, that of the catalog."""
    tp: Degree = 1
    """Tensor parallel ranks of a stage."""
    pp: Degree = 1
    """Pipeline stages."""
    ep: Degree = 1
    """Ranks that divide the experts; divides tp."""
    attention_dp: Degree = 1
    """Ranks of an instance that keep requests of their own and meet in the experts; divides tp."""
    replicas: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Instances of tp x pp accelerators."""
    weights: WeightFormat | None = None
    """Format of the weights; left out, that of the service."""
    kv: CacheFormat | None = None
    """Format of cached keys and values, the same in both pools; left out, that of the service."""
    kv_blocks: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Blocks of cache of each instance; left out, what fits in its memory."""
    engine: Mapping[str, object] = {}
    """Fields of the service's engine to replace in this pool, such as {max_tokens: 16384}."""

    @property
    def accelerators(self) -> int:
        """Accelerators of all instances."""
        return self.tp * self.pp * self.replicas


class Disaggregated(fields.Section):
    """Prefill and decode on pools of their own: one computes prompts, and sends their cache."""

    prefill: PoolChoice
    """Instances that compute prompts; they come first in the cluster."""
    decode: PoolChoice
    """Instances that decode."""
    first_token: Literal["prefill", "decode"] = "prefill"
    """Which pool gives the first token: as soon as the prompt is computed, or once its keys and
    values have come and decoding begins."""


class Speculation(fields.Section):
    """Tokens that a draft guesses for each sequence, and one iteration verifies together."""

    tokens: Annotated[int, Field(ge=1, le=64)]
    """Tokens drafted for a sequence in each iteration."""
    acceptance: Probability
    """Probability that a drafted token is right, if those before it were."""
    by_position: Annotated[fields.Listed[Probability], Field(max_length=64)] = ()
    """Probabilities of the first tokens, where they differ from those of the others."""
    draft: fields.Name = "mtp"
    """How they are drafted: mtp (a layer of the model's own kind and its head, a pass a token),
    n-gram (looked up, at no cost), or a model of the catalog with the same vocabulary."""

    def _after(self) -> Self:
        if len(self.by_position) > self.tokens:
            raise fields.contradiction("drafted", self, given=len(self.by_position))
        return self


class Autoscale(fields.Section):
    """Instances that start and stop with the requests in the service, at most replicas of them."""

    load: Annotated[float, Field(gt=0, le=1e6, strict=False)]
    """Requests in the service, waiting ones counted, that an instance is meant to have."""
    least: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Instances that always run."""
    startup: fields.Time = 120.0
    """From the decision to start an instance until it serves."""
    interval: Annotated[float, fields.Within(Dimension.TIME, 0.01, 3600.0)] = 15.0
    """How often the requests in the service are looked at."""
    patience: fields.Time = 300.0
    """How long fewer instances must suffice before one takes no more requests."""


class Serving(fields.Section):
    """Serving a stream of requests, in place of training."""

    engine: Annotated[EngineChoice, fields.Shorthand("serving.engine")] = EngineChoice()
    """The serving engine."""
    weights: WeightFormat = "bf16"
    """Format of the weights of linear layers and experts, the others in 16 bits; left out, that
    in which a preset was released."""
    kv: CacheFormat = "bf16"
    """Format of cached keys and values."""
    replicas: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Instances of tp x pp accelerators; left out, what the cluster has room for."""
    routing: Literal["round-robin", "least-load", "prefix-aware"] = "round-robin"
    """Which replica serves a request: in turn, least loaded, most of its prompt cached."""
    autoscale: Autoscale | None = None
    """Instances that start and stop with the requests; left out, all replicas run."""
    disaggregated: Disaggregated | None = None
    """Pools for prefill and decode, with layouts of their own in place of parallelism."""
    attention_dp: Degree = 1
    """Ranks of an instance that keep requests of their own and meet in the experts; divides tp."""
    speculation: Speculation | None = None
    """Drafted tokens that are verified beside a sequence's own."""
    kv_blocks: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Blocks of cache of each instance; left out, what fits in its memory."""
    workload: Workload = Workload(rate=1.0)
    """The stream of requests."""
    slo: ServiceLevel = ServiceLevel()
    """Limits that count for goodput."""
