"""Launch scripts of Megatron-LM."""

from __future__ import annotations

import pytest

from mpsim.errors import FormatError
from mpsim.formats import registry as formats
from mpsim.formats.megatron_settings import Flag, era_of, flags, moves, refused, tags

BASE = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024"
LAUNCH = "torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py"
VALUES = {
    "normalization": "RMSNorm", "position-embedding-type": "rope", "fp8-format": "hybrid", "fp4-format": "e2m1", "cp-comm-type": "p2p", "DDP-impl": "local",
    "recompute-granularity": "full", "recompute-method": "block", "activations-checkpoint-method": "uniform", "recompute-modules": "core_attn mlp",
    "fp8-recipe": "mxfp8", "data-parallel-sharding-strategy": "optim", "moe-token-dispatcher-type": "alltoall", "attention-backend": "flash",
    "transformer-impl": "local", "window-size": "128,0", "tokenizer-type": "GPT2BPETokenizer", "pipeline-model-parallel-layout": "Etttt|ttttL",
    "pipeline-model-parallel-size": "2", "virtual-pipeline-model-parallel-size": "1", "num-layers-per-virtual-pipeline-stage": "8", "fp4-recipe": "nvfp4",
    "moe-layer-freq": "[0]*2+[1]*6", "optimizer-offload-fraction": "1.0", "kv-channels": "64", "clip-grad": "1.0", "hidden-size": "512",
    "distributed-backend": "gloo",
}  # fmt: skip
NEEDS = dict.fromkeys(
    (
        f"{word}-pipeline-{rest}"
        for word, rest in (("decoder-first", "num-layers"), ("decoder-last", "num-layers"))
    ),
    "--pipeline-model-parallel-size 2",
)
NEEDS |= dict.fromkeys(
    ("num-layers-in-first-pipeline-stage", "num-layers-in-last-pipeline-stage"),
    "--pipeline-model-parallel-size 2",
)
NEEDS |= {
    "pipeline-model-parallel-layout": "--pipeline-model-parallel-size 2",
    "tp-comm-overlap": "--tensor-model-parallel-size 2 --sequence-parallel",
}


@pytest.fixture
def script(tmp_path):
    """A script read as a file; plain flags are put behind a launch of 16 accelerators."""

    def read(text, *, plain=True, **options):
        path = tmp_path / "train.sh"
        path.write_text(f"{LAUNCH} {BASE} {text}\n" if plain else text)
        return formats.read(path, format="megatron", **options)

    return read


def test_flags_of_the_table_have_one_fate_each():
    """None is both refused and told as not simulated, and both are flags."""
    assert not moves() & refused().keys()
    assert moves() | refused().keys() <= flags().keys()


@pytest.mark.parametrize("first", sorted({flag.name[0] for flag in flags().values()}))
def test_every_flag_has_a_fate(first, script):
    """Each is mapped, ignored, told as not simulated, or refused with a reason."""
    for flag in flags().values():
        if flag.name[0] != first:
            continue
        value = "" if flag.is_switch else VALUES.get(flag.name, "1")
        try:
            read = script(f"{NEEDS.get(flag.name, '')} --{flag.name} {value and repr(value)}")
        except FormatError as error:
            assert (
                flag.name in refused()
                or "contradict" in str(error)
                or "virtual stages need" in str(error)
            ), str(error)
            assert flag.name in str(error)
            continue
        key = f"--{flag.name}"
        mapped = any(item.source == key for item in read.mapped)
        assert mapped != (key in read.ignored), key
        assert flag.name not in moves() or any(key in text for text in read.warnings), key


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("--tensor-model-parallel-size=2 --tensor-model-parallel-size 4", "parallelism.tp", 4),
        ("--tensor-model-parallel 8", "parallelism.tp", 8),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", "schedule.virtual_stages", 2),
        ("--use-distributed-optimizer", "parallelism.zero", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "parallelism.zero", 2),
        ("--use-torch-fsdp2", "parallelism.zero", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", "framework.reshard_after_forward", False),
        ("--num-query-groups 2", "model.kv_heads", 8),
        ("--group-query-attention --num-query-groups 2", "model.kv_heads", 2),
        ("--group-query-attention", "model.kv_heads", 1),
        ("--swiglu", "model.ffn_hidden", 1344),
        ("--checkpoint-activations --checkpoint-num-layers 2", "training.recompute_layers", 2),
        ("--recompute-activations", "training.recompute", "selective"),
        (
            "--recompute-granularity selective --recompute-modules moe_act --moe-layer-recompute",
            "training.recompute_modules",
            ["moe_act", "moe"],
        ),
        ("--bf16 --fp8-format e4m3 --fp8-recipe blockwise", "training.precision", "fp8_block"),
        ("--num-experts 8 --moe-layer-freq '([0]*3+[1]*5)'", "model.moe.dense_layers", 3),
        ("--num-experts 8 --tensor-model-parallel-size 2", "parallelism.etp", 2),
        # loops in Python over experts unless the flag is set, whatever the era's preset has
        ("--num-experts 8 --moe-z-loss-coeff 0.001", "framework.grouped_gemm", False),
        ("--num-experts 8 --moe-router-dtype fp32", "framework.product_launch_cost", 0.0),
        ("--num-experts 8 --moe-router-dtype fp32 --moe-grouped-gemm", "framework.product_launch_cost", {}),
        ("--num-experts 8 --moe-grouped-gemm", "framework.grouped_gemm", {}),
        ("--multi-latent-attention", "model.mla.kv_lora_rank", 32),
        ("--micro-batch-size 2", "training.global_batch", 32),
        ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3", "parallelism.layers_per_stage", [3, 5]),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|(tt|)*2t|L'", "schedule.virtual_stages", None),
        ("--overlap-grad-reduce --bf16", "framework.gradient_overlap", None),
        ("--use-tp-pp-dp-mapping", "parallelism.order", "tp-cp-ep-pp-dp"),
        ("--vocab-size 100", "model.vocab", 100),
    ],
)  # fmt: skip
def test_what_a_flag_becomes(text, key, value, script):
    """History and traps of single flags."""
    try:
        scenario = script(text).scenario
    except FormatError:
        assert value is None
        return
    for part in key.split("."):
        scenario = scenario.get(part, {}) if isinstance(scenario, dict) else scenario
    assert scenario == value or value is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("--fp16 --bf16", "contradict"),
        ("--tensor-model-parallel-size 3", "do not divide"),
        (
            "--pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 1",
            "no whole chunks",
        ),
        ("--model-parallel-size 2 --overlap-grad-reduce", "no version of Megatron-LM has both"),
        ("--tensor-model-parallel-size $TP", r"\$TP"),
        ("--tensor-model-parallel-size $(nvidia-smi)", "a command, and none is run"),
        ("$MORE_FLAGS", "may hold flags"),
        ("--num-layers many", "whole number"),
        ("--is-hybrid-model", "state-space"),
        ("--normalization BatchNorm", "needed one of LayerNorm, RMSNorm"),
        ("--global-batch-size 17 --micro-batch-size 1", "do not divide"),
        ("--tensor", "may be"),
        ("--swiglu 3", "takes no value"),
        ("--tp-comm-overlap --tensor-model-parallel-size 2", "needs --sequence-parallel"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text, word, script):
    """What and why, with the flag."""
    with pytest.raises(FormatError, match=word):
        script(text)


def test_flags_that_no_version_has_are_told(script):
    """A fork's --zero-stage 3 is no reason to answer ZeRO 0 in silence; --lr moves nothing."""
    read = script("--vocab-size 50304 --lr 0.1 --zero-stage 3 --ds-sequence-parallel-size 4")
    told = [line.rpartition(": ")[2] for line in read.warnings if line.startswith("not simulated")]
    assert told == ["--zero-stage, --ds-sequence-parallel-size"]


def test_unknown_values_of_flags_that_do_not_matter_do_not_matter(script):
    """Paths of data and addresses of masters are nobody's business."""
    read = script("--data-path $DATA --save $(date) --micro-batch-size 1")
    assert "--data-path" in read.ignored


SCRIPT = """#!/bin/bash
#SBATCH -N 4
#SBATCH --ntasks-per-node=8 --gpus-per-node=8
#SBATCH --nodes=8   # the last counts
export CUDA_DEVICE_MAX_CONNECTIONS=1 SECRET_TOKEN=hunter2
NAME="${USER}-run"
TP=${TP:-4}; PP=2
WORLD=$(($SLURM_NNODES * 8))
GBS=$((WORLD / (TP * PP) * 16))
ARGS=(
    --tensor-model-parallel-size $TP   # a comment
    --pipeline-model-parallel-size ${PP}
)
OPTIONS=" --num-layers 8 --hidden-size 512 \\
    --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \\
    --micro-batch-size 1 --global-batch-size ${GBS} --save /home/me/$NAME"
run_cmd="python -u pretrain_gpt.py ${OPTIONS}"
srun -l --container-image x sh -c "${run_cmd} ${ARGS[*]}" 2>&1 | tee log
"""


def test_a_batch_script_is_read_through_its_wrappers(script):
    """Header, defaults, sums, arrays, and a command in a string."""
    read = script(SCRIPT, plain=False, cluster="dgx-h100")
    assert read.scenario["cluster"] == {
        "nodes": 8,
        "accelerators_per_node": 8,
        "preset": "dgx-h100",
    }
    assert read.scenario["parallelism"] == {"tp": 4, "pp": 2, "sequence_parallel": False, "zero": 0}
    assert read.scenario["training"]["global_batch"] == 128


def test_no_value_of_the_environment_is_kept(script, tmp_path, mpsim_cli):
    """Neither on stdout nor on stderr nor in the file."""
    script(SCRIPT, plain=False)
    out = tmp_path / "out.yaml"
    done = mpsim_cli("import", "auto", tmp_path / "train.sh", "-o", out, "--json")
    told = done.out + done.err + out.read_text()
    assert done.code == 0
    assert not [word for word in ("hunter2", "/home/me", "USER", "CUDA_DEVICE") if word in told]


BRANCHES = """LOGGING=(--log-interval 1)
OPTIONS="--bf16"
if [ -n "${{WANDB_API_KEY}}" ]; then
    LOGGING+=(--wandb-project ${{P:-x}} --wandb-exp-name y)
fi
if [ "$FANCY" = 1 ]; then
    OPTIONS="$OPTIONS {flag}"
fi
{launch} {base} "${{LOGGING[@]}}" $OPTIONS
"""


def test_flags_of_a_branch_matter_only_where_they_move_something(script):
    """Logs may or may not be on; sequence parallelism has to be known."""
    text = BRANCHES.format(flag="--save-interval 10", launch=LAUNCH, base=BASE)
    assert script(text, plain=False).scenario["training"]["precision"] == "bf16"
    with pytest.raises(
        FormatError,
        match=r"--sequence-parallel \(added to \$OPTIONS in a branch that begins on line 6\)",
    ):
        script(text.replace("--save-interval 10", "--sequence-parallel"), plain=False)


CHOICES = """SIZE=${{SIZE:-13B}}; FP8=0; EXTRA=""
if [[ $SIZE == 7B ]]; then L=32; H=4096
elif [ "$SIZE" = "13B" ] && [ $FP8 -lt 1 ]; then
  L=40; H=5120
  if [[ $L -gt 39 && $H != 4096 ]]; then A=40; else A=32; fi
else
  L=80; H=8192; A=64
fi
case $SIZE in
  7B) MB=4;;
  (13B|30B) MB=2 ;;
  *) MB=1
esac
[ $FP8 -eq 1 ] && EXTRA="--fp8-format hybrid"
test -z "$EXTRA" || echo $EXTRA
{launch} --num-layers $L --hidden-size $H --num-attention-heads $A --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size $MB --bf16 $EXTRA
"""


def test_branches_are_not_followed_and_what_hangs_on_them_is_asked_for(script):
    """Tests of an if, a case or a list are not worked out, also where the script itself decides them."""
    with pytest.raises(FormatError) as refused:
        script(CHOICES.format(launch=LAUNCH), plain=False)
    for words in (
        "--num-layers needs $L (set in a branch that begins on line 2)",
        "--micro-batch-size needs $MB (set only in a case that begins on line 9)",
        "--fp8-format (added to $EXTRA in a branch that begins on line 14) may hold flags",
    ):
        assert words.replace("set only", "set") in str(refused.value).replace("set only", "set")


@pytest.mark.parametrize(
    "test",
    ['[ -f x ]', '[ "$HOSTNAME" = a ]', 'grep -q x y', '[[ $(hostname) == a* ]]', '(( RANK > 0 ))', '[ -d x ] && [ 1 -eq 1 ]'],
)  # fmt: skip
def test_a_test_of_the_machine_stays_unknown(test, script):
    """Files, commands and variables of the environment are nobody's business, so what hangs on them has to be set."""
    text = f"TP=1\nif {test}; then TP=2; fi\n{LAUNCH} {BASE} --tensor-model-parallel-size $TP\n"
    with pytest.raises(FormatError, match=r"\$TP \(set in a branch that begins on line 2\)"):
        script(text, plain=False)


def test_a_script_that_names_its_version_has_its_defaults(script):
    """A checkout or a comment tells the version apart from those that have the same flags; a patch release is the one it mends."""
    for words, preset in (
        ("git checkout core_v0.8.0", "megatron-core"),
        ("# Megatron-LM core_r0.12.2", "megatron-core-2025"),
    ):
        read = script(f"{words}\n{LAUNCH} {BASE} --bf16\n", plain=False)
        assert read.scenario["framework"]["preset"] == preset
    read = script(f"# Megatron-LM v2.5\n{LAUNCH} {BASE} --overlap-grad-reduce\n", plain=False)
    assert "names Megatron-LM v2.5, but the flags" in read.warnings[0]


def test_a_default_that_assigns_counts_from_then_on(script):
    """``: "${V:=8}"`` gives the variable its value."""
    text = (
        f': "${{WORLD:=64}}"\nmpirun -np $WORLD --map-by ppr:8:node python pretrain_gpt.py {BASE}\n'
    )
    assert script(text, plain=False, cluster="dgx-h100").scenario["cluster"]["nodes"] == 8


def test_files_of_the_gpt2_tokenizer_say_how_many_rows_there_are(script):
    """It is the default of pretrain_gpt.py, and needs both."""
    assert script("--vocab-file a --merge-file b").scenario["model"]["vocab"] == 50257
    assert "vocab" not in script("--vocab-file a").scenario["model"]


def test_gloo_as_the_backend_is_the_library_of_the_cluster(script):
    """NCCL is the usual one and changes nothing."""
    assert script("--distributed-backend gloo").scenario["cluster"]["library"] == "gloo"
    assert "library" not in script("--distributed-backend nccl").scenario["cluster"]


def test_two_training_commands_are_refused(script):
    """Which one to simulate is for the user to say."""
    with pytest.raises(FormatError, match="training commands on lines 1, 2"):
        script(f"{LAUNCH} {BASE}\n{LAUNCH} {BASE} --bf16\n", plain=False)


def test_the_era_is_where_all_flags_were():
    """The newest flag's first tag, and the oldest flag's last."""
    assert era_of(["num-layers", "fp8-recipe"]) == ("core_v0.12.0", "HEAD")
    assert era_of(["batch-size", "num-layers"]) == ("v1.0", "v1.0")
    assert all(
        isinstance(flag, Flag) and flag.first in tags() and flag.last in tags()
        for flag in flags().values()
    )


def test_the_first_word_of_an_array_keeps_its_line(script):
    """Not that of the launch that the array is written in."""
    text = f'ARGS=(\n    --num-layers 8\n    {BASE.split("8", 1)[1]}\n)\n{LAUNCH} "${{ARGS[@]}}"\n'
    assert script(text, plain=False).lines["model.layers"] == "train.sh:2 --num-layers"
