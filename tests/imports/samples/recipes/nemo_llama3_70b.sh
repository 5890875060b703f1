#!/bin/bash
#SBATCH --nodes=8
export HF_TOKEN=hf_secret
nemo llm pretrain --factory "llama3_70b(num_nodes=8, name='my_70b_pretrain')" trainer.strategy.context_parallel_size=1 data.global_batch_size=256 log.log_dir=/home/me -y
