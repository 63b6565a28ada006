#!/bin/sh
env > "$GPULEDGER_SLURM_JOBS_DIR/env.$SLURM_JOB_ID"; exit 0
