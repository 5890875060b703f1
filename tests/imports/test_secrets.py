"""Nothing that a file holds beside a run enters what is written: hosts, users, paths, tokens, the environment."""

from __future__ import annotations

import pytest

SECRETS = ("hunter2", "/home/somebody", "secret-host", "10.11.12.13", "hf_AbCdEf")
FILES = {
    "train.sh": """#!/bin/bash
#SBATCH --account=hunter2 --chdir=/home/somebody
export HF_TOKEN=hf_AbCdEf WANDB_API_KEY=hunter2
MASTER=secret-host
if [ "$USER" = hunter2 ]; then echo /home/somebody; fi
torchrun --nproc_per_node=8 --nnodes=2 --master_addr $MASTER --rdzv_endpoint 10.11.12.13:29500 pretrain_gpt.py --num-layers 8 --hidden-size 512 \\
  --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16 --vocab-size 1000 --bf16 \\
  --data-path /home/somebody/data --save /home/somebody/ckpt --wandb-project hunter2 --tokenizer-model /home/somebody/tok
""",
    "ds.json": '{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 16, "bf16": {"enabled": true}, "wandb": {"team": "hunter2", "host": "secret-host"}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/home/somebody/nvme"}}}',
    "titan.toml": '[job]\ndump_folder = "/home/somebody/out"\n[model]\nname = "llama3"\nflavor = "8B"\nhf_assets_path = "/home/somebody/hf"\n[metrics]\nsave_tb_folder = "hunter2"\n[training]\nlocal_batch_size = 1\nseq_len = 4096\n[parallelism]\ndata_parallel_shard_degree = 8\n',
    "config.json": '{"model_type": "llama", "_name_or_path": "/home/somebody/llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 1000, "hub_token": "hf_AbCdEf", "quantization_config": {"path": "hunter2"}}',
    "nemo.yaml": "trainer:\n  devices: 8\n  num_nodes: 1\n  precision: bf16\nexp_manager:\n  explicit_log_dir: /home/somebody\n  wandb_logger_kwargs: {name: hunter2, host: secret-host}\nmodel:\n  micro_batch_size: 1\n  global_batch_size: 8\n  tensor_model_parallel_size: 1\n  num_layers: 4\n  hidden_size: 512\n  num_attention_heads: 8\n  encoder_seq_length: 1024\n  tokenizer: {model: /home/somebody/t, api_key: hf_AbCdEf}\n",
    "all_reduce.json": '{"version": 3, "start_time": "x", "args": ["/home/somebody/all_reduce_perf"], "env": ["HF_TOKEN=hf_AbCdEf", "HOSTNAME=secret-host", "USER=hunter2"], "nccl_version": 22809, "config": {"nthreads": 1, "ngpus": 1, "devices": [{"rank": 0, "group": 0, "pid": 1, "hostname": "secret-host", "device": 0, "device_info": "H100"}, {"rank": 1, "group": 0, "pid": 2, "hostname": "secret-host", "device": 1, "device_info": "H100"}]}, "results": [{"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "-1", "out_of_place": {"time": 10.0, "alg_bw": 0.1, "bus_bw": 0.1, "nwrong": "0"}, "in_place": null}], "end_time": "y"}',
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_secret_of_a_file_is_written(name, tmp_path, mpsim_cli):
    """Neither on stdout nor on stderr nor in the file, as YAML and as JSON."""
    path, out = tmp_path / name, tmp_path / "out.yaml"
    path.write_text(FILES[name])
    for extra in (["-o", out], ["--json"], []):
        done = mpsim_cli("import", "auto", path, "--cluster", "dgx-h100", *extra)
        assert done.code == 0, done.err
        told = done.out + done.err + (out.read_text() if out.exists() else "")
        assert [secret for secret in SECRETS if secret in told] == []
