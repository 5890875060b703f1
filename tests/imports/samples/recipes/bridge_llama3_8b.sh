#!/bin/bash
NODES=4
torchrun --nproc_per_node=8 --nnodes=$NODES scripts/training/run_recipe.py \
   --recipe llama3_8b_pretrain_config \
   model.tensor_model_parallel_size=2 model.sequence_parallel=true train.global_batch_size=128 dataset.sequence_length=4096 train.train_iters=10 mixed_precision=bf16_with_fp8_current_scaling_mixed
