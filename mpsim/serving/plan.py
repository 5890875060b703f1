"""The plan of a service: what runs where and with how much cache, nothing timed."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.hardware import Cluster, host_of
from mpsim.parallel import Mesh, rank_load, straddling, whole_groups
from mpsim.scenario.sections import Variation
from mpsim.scenario.serving import Autoscale, ServiceLevel, Speculation, Workload
from mpsim.scenario.settled import released
from mpsim.serving.balance import balanced
from mpsim.serving.batching import BatchRules
from mpsim.serving.cache import TIERS, Tier
from mpsim.serving.engines import EnginePreset
from mpsim.serving.policies import POLICIES, Budget
from mpsim.serving.prices import IterationPrices, Products
from mpsim.serving.rates import Exchange, Rates, Reductions, rates_of
from mpsim.serving.requests import Requests
from mpsim.serving.speculation import HEADS, N_GRAM, Draft, last_layer
from mpsim.serving.stream import draw_requests
from mpsim.serving.transfers import CacheNetwork
from mpsim.serving.work import FORMATS, Format, RankWork, wide_in
from mpsim.shipped import say
from mpsim.workload import Transformer, model_names
from mpsim.workload import model as find_model

CACHE_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
"""Bytes of an element of the key-value cache, by its format."""
_LOGIT_BYTES = 4.0
_STREAM = 17  # of the seed: the requests are drawn from others


@structs.dataclass(frozen=True, slots=True)
class ServiceMemory:
    """Memory of the fullest accelerator of an instance, by its use [B]."""

    # weights, activations, reserve: of the model; the largest iteration; context and graphs
    weights: float
    activations: float
    reserve: float
    cache: float  # what is left for keys and values
    usable: float  # share of the memory that the engine may fill
    capacity: float
    block_bytes: float  # of one block of cache on one accelerator

    @property
    def blocks(self) -> int:
        """Blocks of cache that fit."""
        return max(0, int(self.cache // self.block_bytes)) if self.block_bytes else 0


class Outage(NamedTuple):
    """Time in which an instance is down [s]."""

    instance: int
    start: float
    end: float


# of their ranks, fastest first: one lies after the other
_INSTANCES = ("tp", "cp", "ep", "pp", "dp")


@structs.dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """Everything about a service resolved, nothing timed."""

    name: str
    model: Transformer
    cluster: Cluster
    engine: EnginePreset
    workload: Workload
    slo: ServiceLevel
    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    replicas: int = 1
    # weights, kv: formats of weights and cache
    weights: str = "bf16"
    kv: str = "bf16"
    routing: str = "round-robin"
    given_blocks: int | None = None  # blocks of cache of each instance; what fits by default
    # the pool that computes prompts where it is another: this one then decodes
    prefill: ServicePlan | None = None
    speculation: Speculation | None = None
    autoscale: Autoscale | None = None
    samples_first: bool = False  # whether, with a pool of prompts, this one gives first tokens
    variation: Variation | None = None
    key: str = "serving"  # where its layout stands in the scenario
    seed: int = 0
    folder: str = "."  # where the file of a trace is looked for

    def __repr__(self) -> str:
        layout = f"tp {self.tp} pp {self.pp} ep {self.ep}, {self.replicas} replicas"
        if (behind := self.prefill) is not None:
            layout += f" behind {behind.replicas} of tp {behind.tp} pp {behind.pp}"
        return (
            f"ServicePlan({self.model.name} on {layout} of {self.cluster.accelerator.name},"
            f" {self.weights}, {self.engine.name}, {self.blocks} blocks)"
        )

    @property
    def accelerators(self) -> int:
        """Accelerators of all replicas, and of the pool of prompts."""
        return sum(plan.pool_accelerators for plan in self.pools.values())

    @property
    def pool_accelerators(self) -> int:
        """Accelerators of all replicas of this pool."""
        return self.tp * self.pp * self.replicas

    @property
    def price_per_hour(self) -> float | None:
        """Price of all accelerators [USD/h]; None where that of any is not known."""
        pools = [
            (p.cluster.accelerator.price_per_hour, p.pool_accelerators) for p in self.pools.values()
        ]
        known = [price * count for price, count in pools if price is not None]
        return sum(known) if len(known) == len(pools) else None

    @property
    def pools(self) -> Mapping[str, ServicePlan]:
        """Pools by what they do, in the order of the cluster."""
        if self.prefill is None:
            return {"serving": self}
        return {"prefill": self.prefill, "decode": self}

    @property
    def first_rank(self) -> int:
        """Where its accelerators begin in the cluster: behind those of the pool of prompts."""
        return 0 if self.prefill is None else self.prefill.pool_accelerators

    @property
    def straddles(self) -> str:
        """Which groups lie across scale-up domains though they need not, which no price counts."""
        mesh = Mesh(tp=self.tp, pp=self.pp, dp=self.replicas, order=_INSTANCES)
        # where ranks are free every instance is placed whole, as the prices take it
        placed = whole_groups(self.cluster, mesh)
        found = straddling(placed, mesh, first=self.first_rank) if placed is self.cluster else ()
        if not found:
            return ""
        return (
            f"{', '.join(map(str, found))} straddle scale-up domains of {self.cluster.node.domain}"
            " and are priced as if they did not: choose a tp that divides a domain, or fewer"
            " replicas"
        )

    @property
    def lanes(self) -> int:
        """Batches that run beside each other: one a pipeline stage of every instance."""
        return self.replicas * self.pp

    @property
    def ranks(self) -> int:
        """Ranks of an instance that are simulated apart, each with its part of the budgets."""
        return self.attention_dp if self.engine.attention_ranks == "apart" else 1

    @property
    def rank_rules(self) -> BatchRules:
        """How one of them forms iterations."""
        rules, ranks = self.rules, self.ranks
        own = {key: max(1, getattr(rules, key) // ranks) for key in ("max_sequences", "max_tokens")}
        return structs.replace(rules, **own)

    @property
    def rank_blocks(self) -> int:
        """Blocks of cache of one batch, or of one rank of it that keeps requests of its own."""
        return self.blocks // (self.pp * self.ranks)

    @property
    def room(self) -> int:
        """Tokens that these hold."""
        return self.rank_blocks * self.engine.block

    def tiers(self, unit: int) -> tuple[Tier, ...]:
        """Memories below the device that keep units of so many tokens of one batch, or rank."""
        # each accelerator has a link of its own, and its share of the host's memory and drives
        rooms = [getattr(self.engine, name) for name in TIERS]
        if not any(rooms):
            return ()
        host, node = host_of(self.cluster), self.cluster.node.accelerators
        size = unit // self.engine.block * self.memory.block_bytes  # on one accelerator
        whole = size * self.tp * self.pp / self.attention_dp
        memory = min(host.link_bandwidth, host.memory_bandwidth / node)
        rates = memory, min(memory, host.nvme_read / node)
        share = self.pp * self.ranks
        return tuple(
            Tier(int(room / share / whole), size / rate)
            for room, rate in zip(rooms, rates, strict=True)
        )

    @functools.cached_property
    def instance_ranks(self) -> Ints:
        """Ranks of each instance in the cluster."""
        ranks = self.first_rank + np.arange(self.pool_accelerators, dtype=np.int64)
        return ranks.reshape(self.replicas, -1)

    @functools.cached_property
    def paces(self) -> tuple[float, ...]:
        """Time of each instance over that of one of nominal speed; empty where all have that.

        The ranks of an instance wait for each other in every layer: it is as slow as its slowest
        rank. Speeds that are drawn are lognormal with mean 1, one a rank of the cluster.
        """
        variation = self.variation
        if variation is None or not (variation.slow or variation.speed):
            return ()
        count = self.cluster.accelerators
        speed = np.ones(count)
        if variation.speed:
            sigma = math.sqrt(math.log1p(variation.speed**2))
            random = np.random.default_rng([self.seed, _STREAM])
            speed = random.lognormal(-(sigma**2) / 2, sigma, count)
        nodes = self.cluster.node_of(np.arange(count))
        for part in variation.slow:
            if part.node is not None:
                speed[nodes == part.node] *= part.speed
            else:
                speed[list(part.ranks or ())] *= part.speed
        return tuple((1.0 / speed[self.instance_ranks].min(axis=1)).tolist())

    @property
    def outages(self) -> tuple[Outage, ...]:
        """Instances with a rank on a node that fails, from when to when they are down [s]."""
        if self.variation is None:
            return ()
        nodes = self.cluster.node_of(self.instance_ranks)
        return tuple(
            Outage(replica, outage.at, outage.at + outage.duration)
            for outage in self.variation.outages
            for replica in np.flatnonzero((nodes == outage.node).any(axis=1)).tolist()
        )

    @functools.cached_property
    def network(self) -> CacheNetwork:
        """Ways of keys and values from the instances that compute prompts to those that decode."""
        pools = self.pools.values()
        holders = min(pool.tp * pool.pp // pool.attention_dp for pool in pools)
        return CacheNetwork(self.cluster, [p.instance_ranks for p in pools], holders=holders)

    @property
    def token_bytes(self) -> float:
        """Keys and values of a token, on all ranks that decode it [B].

        They are sent once to every rank that holds them: tensor parallel ranks beyond the key-value
        heads, and all of latent attention, get copies.
        """
        layers = sum(block.layers for block in self.work.attention)
        per_layer = self.work.cache_elements / layers * CACHE_BYTES[self.kv]
        served = self.model.layers - self.model.mtp_layers
        return per_layer * served * self.tp / self.attention_dp

    @functools.cached_property
    def weight_format(self) -> Format:
        """Format of linear layers: weights alone are narrow where the chip has no units for it."""
        form = FORMATS[self.weights]
        if self.cluster.accelerator.multiplies(form.precision):
            return form
        return structs.replace(form, compute="bf16", precision="bf16")

    @functools.cached_property
    def work(self) -> RankWork:
        """Products, attention and weights that one rank computes and reads."""
        return self._work_of(self.model, self.pp, self.ep)

    def _work_of(self, model: Transformer, pp: int, ep: int) -> RankWork:
        """The work of one rank on a model: this one, or one that drafts for it."""
        return RankWork.of(
            model,
            tp=self.tp,
            pp=pp,
            ep=ep,
            attention_dp=self.attention_dp,
            weights=self.weight_format,
            wide=FORMATS["bf16"],
            wide_roles=wide_in(model, self.weights),
            imbalance=self.imbalance,
            spread=self.popularity,
        )

    @property
    def popularity(self) -> float:
        """Standard deviation of an expert's tokens over their mean."""
        moe = self.model.moe
        return self.rates.expert_spread if moe is None or not moe.spread else moe.spread

    @property
    def imbalance(self) -> float:
        """Tokens of the busiest expert rank over the mean: as stated, or by popularity."""
        moe, engine = self.model.moe, self.engine
        if moe is None:
            return 1.0
        busiest = moe.imbalance
        if moe.spread or busiest == 1.0:
            busiest *= rank_load(moe.experts, self.ep, self.popularity)
        if not engine.eplb:
            return busiest
        return balanced(busiest, moe.experts, self.ep, engine.redundant_experts)

    @property
    def policy(self) -> type[Budget]:
        """Engines with the decisions of its scheduler."""
        return POLICIES[self.engine.scheduler]

    @property
    def first_token_time(self) -> float:
        """Time to the first token beside queue and prompt [s]; a static batch has no server."""
        return 0.0 if self.policy.together else self.engine.first_token_time

    @property
    def tokenizer_time(self) -> float:
        """Time of an instance's server for a token of a prompt [s]."""
        return self._served * self.engine.tokenizer_time / (self.prefill or self).replicas

    @property
    def stream_time(self) -> float:
        """Time of an instance's server for a token of one of its batches' answers [s]."""
        # pools stand behind front ends of their own, as many as it takes
        single, engine = self._served and self.prefill is None, self.engine
        return single * engine.stream_time * self.pp / engine.stream_interval

    @property
    def _served(self) -> bool:
        """Whether requests pass a server, which a static batch or one that comes at once lacks."""
        return not (self.policy.together or self.workload.arrival == "all-at-once")

    @functools.cached_property
    def rates(self) -> Rates:
        """Rates of the accelerators."""
        return rates_of(self.cluster)

    @functools.cached_property
    def prices(self) -> IterationPrices:
        """Prices of the iterations of one instance."""
        cluster, rates, engine = self.cluster, self.rates, self.engine
        reductions = Reductions(cluster, self.tp, rates, engine)
        products = Products(cluster, rates, engine.expert_kernel, self._padding)
        crosses = self.tp * self.pp > cluster.domain_size
        link = cluster.node.nic if crosses else cluster.node.scale_up
        exchanged = self.ep > 1 and self.attention_dp > 1
        return IterationPrices(
            self.work,
            rates,
            engine,
            reductions,
            CACHE_BYTES[self.kv],
            send=(link.hop_latency, link.bandwidth * link.efficiency),
            products=products,
            draft=self.draft,
            exchange=Exchange(cluster, self.work) if exchanged else None,
            call_time=host_of(cluster).call_time,
        )

    @property
    def _padding(self) -> int:
        """Rows that a launch of DeepGEMM passes of each expert; none where another kernel runs."""
        engine, family = self.engine, self.cluster.accelerator.family
        divided = self.tp // self.ep >= engine.padded_below > 0
        elsewhere = family not in (engine.padded_families or (family,))
        return 0 if divided or elsewhere else engine.expert_padding

    @functools.cached_property
    def draft(self) -> Draft | None:
        """Drafted tokens, and the work of drafting them on one rank."""
        choice = self.speculation
        if choice is None:
            return None
        first = choice.by_position
        acceptance = (*first, *(choice.acceptance,) * (choice.tokens - len(first)))
        if choice.draft == N_GRAM:
            return Draft(acceptance)
        heads = choice.draft == HEADS
        model = last_layer(self.model) if heads else find_model(choice.draft)
        work = self._work_of(model, 1, self.ep if heads else 1)
        # a layer of the model's own shares embedding and head with it
        copies = (1.0 if self.model.tied_embeddings else 2.0) if heads else 0.0
        shared = copies * work.head.weights * FORMATS["bf16"].bytes
        return Draft(acceptance, work, work.weight_bytes - shared)

    @functools.cached_property
    def memory(self) -> ServiceMemory:
        """Memory of the fullest accelerator, by its use.

        Activations of the largest iteration: ``max_tokens (2 f / t + 4 h)`` 2-byte elements and a
        row of logits for each sequence.
        """
        engine, work = self.engine, self.work
        capacity = self.cluster.accelerator.memory_bytes
        tokens = min(engine.max_tokens, 16384)
        width = 2 * self.model.ffn_hidden / self.tp + 4 * self.model.hidden
        logits = min(engine.max_sequences, 1024) * work.head.product.n * _LOGIT_BYTES
        activations = tokens * width * 2.0 + logits
        weights, elements = work.weight_bytes, work.cache_elements - self._windowed[1]
        copies = engine.redundant_experts / self.ep if engine.eplb else 0.0
        weights += copies * sum(e.layers * e.elements * e.format.bytes for e in work.experts)
        if self.draft is not None:
            weights += self.draft.weight_bytes
            elements += 0.0 if (drafts := self.draft.work) is None else drafts.cache_elements
        fixed = weights + activations + engine.reserve
        if engine.fraction_of == "free":
            usable = fixed + engine.memory_fraction * max(0.0, capacity - fixed)
        else:
            usable = engine.memory_fraction * capacity
        block_bytes = engine.block * elements * CACHE_BYTES[self.kv]
        return ServiceMemory(
            weights=weights,
            activations=activations,
            reserve=engine.reserve,
            cache=max(0.0, usable - fixed),
            usable=usable,
            capacity=capacity,
            block_bytes=block_bytes,
        )

    @functools.cached_property
    def _windowed(self) -> tuple[int, float]:
        """Tokens that windowed layers keep, elements of a token in them; zero if held in full."""
        shapes = self.work.attention
        windows = {shape.window for shape in shapes}
        if not self.engine.window_cache or 0 not in windows or len(windows) == 1:
            return 0, 0.0
        elements = math.fsum(s.layers * s.read_width for s in shapes if s.window)
        return max(windows), elements

    @property
    def blocks(self) -> int:
        """Blocks of cache of each instance, of all ranks that keep requests of their own."""
        if self.given_blocks is not None:
            return self.given_blocks
        return self.memory.blocks * self.attention_dp

    @property
    def cache_tokens(self) -> int:
        """Tokens that fit into the cache of one instance."""
        return self.blocks * self.engine.block

    @property
    def rules(self) -> BatchRules:
        """How an instance forms iterations, of all ranks that keep requests of their own."""
        own = {name: getattr(self.engine, name) for name in EnginePreset.__dataclass_fields__}
        own["max_sequences"] *= self.attention_dp
        own["max_tokens"] *= self.attention_dp
        if (state := self.work.state) is not None:
            own["state_blocks"] = math.ceil(state.layers * state.held / self.memory.block_bytes)
        window, elements = self._windowed
        if window:
            share = elements / (self.work.cache_elements - elements)
            own |= {"window": window, "window_share": share}
        if self.draft is not None:
            own |= {"drafts": self.draft.tokens, "gain": self.draft.gain}
        return BatchRules(**own)

    def problems(self) -> Iterator[Problem]:
        """Mistakes that only the whole plan shows, such as weights that do not fit."""
        memory, behind = self.memory, self.prefill
        if behind is not None:
            yield from behind.problems()
        if self.given_blocks is None and memory.blocks == 0:
            fixed = memory.weights, memory.activations, memory.reserve
            sizes = [f"{size / 1e9:.1f} GB" for size in (*fixed, sum(fixed), memory.usable)]
            mend = self._changes_that_fit()
            mend = mend or f"raise tp or pp, or take narrower weights than {self.weights}"
            chip, ranks = self.cluster.accelerator.name, self.tp * self.pp
            words = say("serving.no_cache", sizes=sizes, ranks=ranks, chip=chip, mend=mend)
            yield Problem(words, self.key)
        if message := self._wrong_draft():
            yield Problem(message, key="serving.speculation.draft")
        moe, copies = self.model.moe, self.engine.redundant_experts
        if moe is not None and self.engine.eplb and (moe.experts + copies) % self.ep:
            near = -moe.experts % self.ep
            message = say("serving.copies", s=self, copies=copies, experts=moe.experts, near=near)
            yield Problem(message, key=f"{self.key}.engine.redundant_experts")
        if behind is not None and behind.engine.block != self.engine.block:
            own, other = self.engine.block, behind.engine.block
            yield Problem(say("serving.blocks", own=own, other=other), self.key)

    def _changes_that_fit(self) -> str:
        """The nearest change of each key alone that leaves room for a request of mean length."""
        pool = f"{self.key}." if self.key != "serving" else ""
        chip, most = self.cluster.accelerator, self.cluster.accelerators
        inside = (self.model.heads, *(() if self.model.mla else (self.model.kv_heads,)))
        own, form = released(self.model.name), FORMATS[self.weights]
        ways: dict[str, list[int] | list[str]] = {
            "parallelism.tp": [
                n
                for n in range(self.tp + 1, most // self.pp + 1)
                if all(heads % n == 0 or n % heads == 0 for heads in inside)
                and not n % self.attention_dp
            ],
            "parallelism.pp": [*range(self.pp + 1, min(most // self.tp, self.model.layers) + 1)],
            "serving.weights": [
                name
                for name in (own, "fp8", "w4a16", "nvfp4")
                if name is not None
                and (new := FORMATS[name]).bytes < form.bytes
                and (name == own or chip.multiplies(new.precision))
            ],
        }
        load = self.workload
        length = 1 if load.trace is not None else load.prompt.tokens + load.output.tokens
        fitting = []
        for key, values in ways.items():
            section, field = key.split(".")
            for value in values:
                given: dict[str, Any] = {field: value, "prefill": None}
                if structs.replace(self, **given).memory.blocks * self.engine.block >= length:
                    fitting.append(f"{pool or f'{section}.'}{field}: {value}")
                    break
        return f"it would fit with {' or '.join(fitting)}" if fitting else ""

    def _wrong_draft(self) -> str:
        """Say why a draft model cannot draft for this one; nothing where it can."""
        name = HEADS if self.speculation is None else self.speculation.draft
        if name in (HEADS, N_GRAM):
            return ""
        if name not in (known := (HEADS, N_GRAM, *model_names(aliases=True))):
            return f"no model {name!r}; {nearest(name, known)}"
        draft, inside = find_model(name), max(1, self.tp // self.attention_dp)
        if draft.vocab != self.model.vocab:
            own = {"needed": self.model.vocab, "model": self.model.name}
            return say("serving.vocabulary", draft=name, vocab=draft.vocab, **own)
        if draft.heads % inside:
            return say("serving.draft_heads", draft=name, heads=draft.heads, ranks=inside)
        return ""

    def requests(self, count: int | None = None) -> Requests:
        """The stream of requests, `count` of them whatever the workload says; see `draw_requests`.

        ScenarioError if the service cannot hold its weights, or a request.
        """
        drawn = draw_requests(self.workload, seed=self.seed, folder=self.folder, count=count)
        self.require(drawn)
        return drawn

    def require(self, requests: Requests | None = None) -> None:
        """Refuse a service that cannot hold its weights, a request or a prompt: ScenarioError."""
        if problems := [*self.problems()]:
            raise ScenarioError(problems)
        engine = (self.prefill or self).engine
        longest = 0 if requests is None else int(requests.prompt.max(initial=0))
        whole = not engine.chunked and not self.policy.together
        if whole and longest > engine.max_tokens:
            raise ScenarioError(say("serving.long_prompt", longest=longest, most=engine.max_tokens))
        if self.work.state is not None and engine.prefix_cache and requests and requests.hashes:
            raise ScenarioError(say("serving.shared_states", model=self.model.name))
        if requests is not None:
            self._require_room(requests, requests.output + self.rules.drafts, "an instance")
            if self.prefill is not None:
                ones = np.ones_like(requests.output)
                self.prefill._require_room(requests, ones, "an instance of the prefill pool")

    def _require_room(self, requests: Requests, output: Ints, holder: str) -> None:
        """Refuse requests that the cache of no batch can hold."""
        tokens, room, rules = requests.prompt + output, self.room, self.rules
        kept = np.minimum(rules.window, tokens) * rules.window_share
        blocks = rules.state_blocks + np.ceil(kept / rules.block).astype(np.int64)
        tokens = tokens + blocks * rules.block
        if too_long := int((tokens > room).sum()):
            figures = {"count": too_long, "of": len(requests), "longest": int(tokens.max())}
            raise ScenarioError(say("serving.no_room", **figures, holder=holder, room=room))
