"""Parameter counts of the catalog against what was published."""

import pytest

from mpsim.workload import model, model_names, model_year

# name: (published parameters, half the last printed digit, source)
PUBLISHED: dict[str, tuple[float, float, str]] = {
    # github openai/gpt-2 README and model cards; the paper's own 117M, 345M, 762M and 1542M are wrong
    "gpt2-small": (124e6, 0.5e6, "openai/gpt-2 README"),
    "gpt2-medium": (355e6, 0.5e6, "openai/gpt-2 README"),
    "gpt2-large": (774e6, 0.5e6, "openai/gpt-2 README"),
    "gpt2-xl": (1558e6, 0.5e6, "openai/gpt-2 README"),
    "gpt3-175b": (175.0e9, 0.05e9, "Brown et al. 2020, Table 2.1"),
    "gpt-1.7b": (1.7e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "gpt-3.6b": (3.6e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "gpt-7.5b": (7.5e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "gpt-18b": (18.4e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "gpt-39b": (39.1e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "gpt-76b": (76.1e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "gpt-145b": (145.6e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "gpt-310b": (310.1e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "gpt-530b": (529.6e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "gpt-1t": (1008.0e9, 0.05e9, "Narayanan et al. SC'21, Table 1"),
    "megatron-turing-530b": (530e9, 0.5e9, "Smith et al. 2022, abstract"),
    "palm-540b": (540.35e9, 0.005e9, "Chowdhery et al. 2022, Table 1"),
    "bloom-176b": (176.247e9, 0.0005e9, "BigScience 2022, Table 3"),
    "opt-175b": (175e9, 0.5e9, "Zhang et al. 2022, Table 1"),
    # Llama 2 keeps the shapes of LLaMA for 7B and 13B
    "llama2-7b": (6.7e9, 0.05e9, "Touvron et al. 2023 (LLaMA), Table 2"),
    "llama2-13b": (13.0e9, 0.05e9, "Touvron et al. 2023 (LLaMA), Table 2"),
    "llama2-70b": (69.0e9, 0.05e9, "huggingface meta-llama/Llama-2-70b-hf, model card"),
    "llama3-8b": (8e9, 0.5e9, "Grattafiori et al. 2024, Table 3"),
    "llama3-70b": (70e9, 0.5e9, "Grattafiori et al. 2024, Table 3"),
    "llama3-405b": (405e9, 0.5e9, "Grattafiori et al. 2024, Table 3"),
    "qwen2.5-7b": (7.61e9, 0.005e9, "huggingface Qwen/Qwen2.5-7B, model card"),
    "qwen2.5-32b": (32.5e9, 0.05e9, "huggingface Qwen/Qwen2.5-32B, model card"),
    "qwen2.5-72b": (72.7e9, 0.05e9, "huggingface Qwen/Qwen2.5-72B, model card"),
    "mistral-7b": (7.24e9, 0.005e9, "huggingface mistralai/Mistral-7B-v0.1, model card"),
    "mixtral-8x7b": (46.7e9, 0.05e9, "mistral.ai, Mixtral of experts (2023): 46.7B in total"),
    "mixtral-8x22b": (141e9, 0.5e9, "mistral.ai, Cheaper, Better, Faster, Stronger (2024): 141B"),
    "deepseek-v2": (236e9, 0.5e9, "DeepSeek-V2, arXiv 2405.04434, abstract"),
    "deepseek-v2-lite": (15.7e9, 0.05e9, "DeepSeek-V2, arXiv 2405.04434, appendix B"),
    "deepseek-v3": (671e9, 0.5e9, "DeepSeek-V3, arXiv 2412.19437, abstract"),
    "kimi-k2": (1.03e12, 0.015e12, "Kimi K2, arXiv 2507.20534, Table 2 (1.04T)"),
    "qwen3-8b": (8.2e9, 0.05e9, "huggingface Qwen/Qwen3-8B, model card"),
    "qwen3-32b": (32.8e9, 0.05e9, "huggingface Qwen/Qwen3-32B, model card"),
    "qwen3-30b-a3b": (30.5e9, 0.05e9, "huggingface Qwen/Qwen3-30B-A3B, model card"),
    "qwen3-235b-a22b": (235e9, 0.5e9, "huggingface Qwen/Qwen3-235B-A22B, model card"),
    # the vision encoder that the cards count: 34 layers of 1408 x 5632, and projections to 5120, 0.87e9
    "llama4-scout": (109e9 - 0.87e9, 0.5e9, "meta-llama/llama-models, Llama 4 model card"),
    "llama4-maverick": (400e9 - 0.87e9, 0.5e9, "meta-llama/llama-models, Llama 4 model card"),
    "gpt-oss-20b": (20.91e9, 0.005e9, "gpt-oss model card, arXiv 2508.10925, Table 1"),
    "gpt-oss-120b": (116.83e9, 0.005e9, "gpt-oss model card, arXiv 2508.10925, Table 1"),
    "glm-4.5": (355e9, 0.5e9, "GLM-4.5, arXiv 2508.06471, Table 1"),
    "glm-4.5-air": (106e9, 0.5e9, "GLM-4.5, arXiv 2508.06471, Table 1"),
    "minimax-m2": (229e9, 1e9, "huggingface MiniMaxAI/MiniMax-M2, model card (230B)"),
    "dbrx-132b": (132e9, 0.5e9, "databricks/dbrx, model card"),
    "qwen3-next-80b-a3b": (80e9, 0.5e9, "Qwen/Qwen3-Next-80B-A3B-Instruct, model card"),
    "olmoe-1b-7b": (6.92e9, 0.005e9, "OLMoE, arXiv 2409.02060, Table 1 (6.9B)"),
    "arctic-480b": (480e9, 0.5e9, "Snowflake Arctic, model card"),
    "glam-1.2t": (
        1162e9,
        0.5e9,
        "GLaM, arXiv 2112.06905, Table 4: 64B/64E has 1.2T; 1162B in Table 1",
    ),
    "switch-c": (1571e9, 0.5e9, "Switch Transformers, arXiv 2101.03961, Table 9"),
    "t5-large": (737.7e6, 0.05e6, "huggingface google-t5/t5-large, model card: 738M"),
    "t5-3b": (2.85e9, 0.005e9, "huggingface google-t5/t5-3b: 3B, 2.85B in the weight file"),
    "t5-11b": (11.3e9, 0.05e9, "huggingface google-t5/t5-11b: 11B, 11.3B in the weight file"),
    "bert-large": (336e6, 0.5e6, "huggingface google-bert/bert-large-uncased, model card"),
    "gemma2-9b": (9.24e9, 0.005e9, "Gemma 2, arXiv 2408.00118, Table 2: 918M + 8324M"),
    "gemma2-27b": (27.23e9, 0.005e9, "Gemma 2, arXiv 2408.00118, Table 2: 1180M + 26047M"),
    "gemma3-12b": (11.77e9, 0.005e9, "Gemma 3, arXiv 2503.19786, Table 1: 1012M + 10759M"),
    "gemma3-27b": (27.02e9, 0.005e9, "Gemma 3, arXiv 2503.19786, Table 1: 1416M + 25600M"),
    "gpt-j-6b": (6.05e9, 0.005e9, "kingoflolz/mesh-transformer-jax, README: 6,053,381,344"),
    "nemotron-h-8b": (8e9, 0.5e9, "Nemotron-H, arXiv 2504.03624: 8B"),
    "nemotron-h-56b": (56e9, 0.5e9, "Nemotron-H, arXiv 2504.03624: 56B"),
    "falcon-180b": (180e9, 0.5e9, "The Falcon series, arXiv 2311.16867, Table 1"),
}

# What one token meets: name, whether the source counts the token table, parameters, half the last printed digit, source
ACTIVE: dict[str, tuple[bool, float, float, str]] = {
    "mixtral-8x7b": (True, 12.9e9, 0.05e9, "mistral.ai, Mixtral of experts (2023)"),
    "mixtral-8x22b": (True, 39e9, 0.5e9, "mistral.ai, Cheaper, Better, Faster, Stronger (2024)"),
    "deepseek-v2": (False, 21e9, 0.5e9, "DeepSeek-V2, abstract"),
    "deepseek-v2-lite": (False, 2.4e9, 0.06e9, "DeepSeek-V2, appendix B (2.45 cut off)"),
    "deepseek-v3": (False, 37e9, 0.5e9, "DeepSeek-V3, abstract"),
    "kimi-k2": (False, 32e9, 0.5e9, "Kimi K2, abstract"),
    "qwen3-30b-a3b": (True, 3.3e9, 0.06e9, "Qwen/Qwen3-30B-A3B, model card (3.35 cut off)"),
    "qwen3-235b-a22b": (True, 22e9, 0.5e9, "Qwen/Qwen3-235B-A22B, model card"),
    "llama4-scout": (True, 17e9, 0.5e9, "Llama 4 model card"),
    "llama4-maverick": (True, 17e9, 0.5e9, "Llama 4 model card"),
    "gpt-oss-20b": (False, 3.61e9, 0.005e9, "gpt-oss model card, Table 1"),
    "gpt-oss-120b": (False, 5.13e9, 0.005e9, "gpt-oss model card, Table 1"),
    "minimax-m2": (False, 10e9, 0.5e9, "MiniMaxAI/MiniMax-M2, model card"),
    "dbrx-132b": (False, 36e9, 0.5e9, "databricks/dbrx, model card"),
    "olmoe-1b-7b": (True, 1.3e9, 0.05e9, "OLMoE, Table 1"),
    "arctic-480b": (True, 17e9, 0.5e9, "Snowflake Arctic, model card"),
    "glam-1.2t": (True, 96.6e9, 0.05e9, "GLaM, Table 4"),
}

# Exact counts of released models: from the index of their weight files, or counted by transformers 5.23 on meta tensors of their config.json.
EXACT = {
    "bloom-176b": 176_247_271_424,
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "opt-175b": 174_604_468_224,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama4-scout": 107_769_861_120,  # text alone
    "llama4-maverick": 400_711_848_960,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-12b": 11_766_034_176,  # text alone
    "gemma3-27b": 27_009_346_304,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,  # transformers keeps the routers' corrections as buffers
    "kimi-k2": 1_026_408_209_408,
    "glm-4.5": 352_797_814_784,  # without the layer that predicts further tokens
    "glm-4.5-air": 106_852_245_504,
    "dbrx-132b": 131_596_523_520,
    "olmoe-1b-7b": 6_919_161_856,  # norms of queries and keys as wide as all heads
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
}

# What released models have beside: name, their count, and the rest
BESIDE = {
    "gpt-oss-20b": (20_914_757_184, 24 * 64, "an attention sink for each head"),
    "gpt-oss-120b": (116_829_156_672, 36 * 64, "an attention sink for each head"),
    "falcon-180b": (179_522_565_120, (80 * 3 + 1) * 14848, "a second norm in each layer, and biases of norms"),
}  # fmt: skip


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_within_one_percent_of_the_published_count(name: str) -> None:
    """Every model of the catalog; 1.7 and 3.6 billion are printed too coarsely for one percent."""
    published, rounding, source = PUBLISHED[name]
    error = abs(model(name).parameters().total - published)
    assert error <= max(0.01 * published, rounding), source


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_within_one_percent_of_the_published_count(name: str) -> None:
    """What a token meets of a mixture of experts, by the convention of its source."""
    lookup, published, rounding, source = ACTIVE[name]
    error = abs(model(name).active_parameters(lookup=lookup) - published)
    assert error <= max(0.01 * published, rounding), source


def test_every_mixture_of_experts_has_a_published_active_count_or_a_reason() -> None:
    """GLM prints 32B and 12B with a layer that is not simulated, Qwen3-Next 3B without its tables; Switch prints none."""
    mixtures = {name for name in model_names() if model(name).moe is not None}
    assert mixtures - ACTIVE.keys() == {
        "glm-4.5",
        "glm-4.5-air",
        "qwen3-next-80b-a3b",
        "switch-c",
    }


@pytest.mark.parametrize("name", EXACT)
def test_released_checkpoints_are_counted_exactly(name: str) -> None:
    """Biases, norms and tables of open checkpoints add up to the last parameter."""
    assert model(name).parameters().total == EXACT[name]


@pytest.mark.parametrize("name", BESIDE)
def test_released_checkpoints_that_hold_more_hold_just_that(name: str) -> None:
    """Sinks and norms that no layer here has are the whole difference."""
    count, beside, what = BESIDE[name]
    assert count - model(name).parameters().total == beside, what


def test_models_without_an_exact_count_were_never_released_or_say_why() -> None:
    """Of closed models no config exists; of GPT-J, BERT, Switch, Arctic, MiniMax and the hybrids the catalog says what is simplified or recalled."""
    rest = set(model_names()) - EXACT.keys() - BESIDE.keys()
    closed = {
        name for name in rest if name.startswith(("gpt-", "gpt3", "megatron-", "palm", "glam"))
    }
    hybrids = {"nemotron-h-8b", "nemotron-h-56b", "qwen3-next-80b-a3b"}
    assert rest - closed - hybrids == {"bert-large", "switch-c", "arctic-480b", "minimax-m2"}


def test_every_model_has_the_year_of_its_source() -> None:
    """No model came out after the source of its figures was read, nor before 2018."""
    for name in model_names():
        assert 2018 <= model_year(name) <= int(model(name).as_of[:4])


@pytest.mark.parametrize(
    "name", [name for name in model_names() if model(name).source.startswith("Narayanan")]
)
def test_sc21_models_follow_the_formula_of_the_paper(name: str) -> None:
    """Narayanan et al. (SC'21), equation 2: P = 12 l h^2 (1 + 13/(12h) + (V + s)/(12 l h))."""
    gpt = model(name)
    layers, h = gpt.layers, gpt.hidden
    formula = 12 * layers * h**2 * (1 + 13 / (12 * h) + (gpt.vocab + 2048) / (12 * layers * h))
    # the formula leaves out the final norm's 2h
    assert gpt.parameters().total - 2 * h == pytest.approx(formula, rel=1e-12)
