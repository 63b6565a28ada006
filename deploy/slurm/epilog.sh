#!/bin/sh
# GPU Ledger's part of Slurm's Epilog: the job no longer holds its GPUs. Always exits 0, as a failure drains the node.

PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin # Slurm sets none
export PATH
jobs_dir=${GPULEDGER_SLURM_JOBS_DIR:-/run/gpuledger/slurm}

case ${SLURM_JOB_ID:-} in
    '' | *[!0-9]*) problem="SLURM_JOB_ID is '${SLURM_JOB_ID:-}', no job id" ;;
    *) problem=$(rm -f "$jobs_dir/$SLURM_JOB_ID" "$jobs_dir/.$SLURM_JOB_ID".* 2>&1) ;;
esac
if [ -n "$problem" ]; then
    printf 'gpuledger-epilog: %s\n' "$problem" >&2
    logger -t gpuledger-epilog -p daemon.warning -- "$problem" 2>/dev/null
fi
exit 0
