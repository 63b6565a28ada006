#!/bin/sh
# GPU Ledger's part of Slurm's Prolog: writes on the node which job holds which GPUs, for gpuledger-agent to read.
#
# Slurm drains a node whose prolog fails, so this script always exits 0: an error is logged and costs the
# attribution of one job, never a node. POSIX sh and coreutils only.
#
#   GPULEDGER_SLURM_JOBS_DIR   folder of the files; the agent's setting slurm_jobs_dir (/run/gpuledger/slurm)
#   GPULEDGER_SLURM_SHARDS=1   ask scontrol how many shards the job has (one RPC to slurmctld per job with shards)

PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin # Slurm sets none
export PATH
umask 022
jobs_dir=${GPULEDGER_SLURM_JOBS_DIR:-/run/gpuledger/slurm}

say() {
    printf 'gpuledger-prolog: %s\n' "$1" >&2
    logger -t gpuledger-prolog -p daemon.warning -- "$1" 2>/dev/null
}

# One line of the file: no control characters, 1000 bytes at most. Users choose names and comments.
entry() {
    [ -n "$2" ] || return 0
    printf '%s=%s\n' "$1" "$(printf '%s' "$2" | LC_ALL=C tr '\000-\037\177' ' ' | cut -b 1-1000)"
}

# Runs a command for at most 10 seconds, if coreutils' timeout exists: a hanging driver must not hang the job.
briefly() {
    if command -v timeout >/dev/null 2>&1; then timeout 10 "$@"; else "$@"; fi
}

# UUIDs of the devices with these indices. Slurm's index is the N of /dev/nvidiaN (gres.conf), the driver's minor
# number, which is not always nvidia-smi's; so the driver's own files come first and nvidia-smi only without them.
uuids_of() {
    table=$(cat "$drivers"/*/information 2>/dev/null | awk -F ': *' '
        /^GPU UUID/ { sub(/^[ \t]+/, "", $2); uuid = $2 }
        /^Device Minor/ { gsub(/[ \t]/, "", $2); print $2, uuid }')
    if [ -z "$table" ] && command -v nvidia-smi >/dev/null 2>&1; then
        table=$(briefly nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9]*\):.*(UUID: \(GPU-[0-9a-f-]*\)).*/\1 \2/p')
    fi
    named=
    for index in $(printf '%s' "$1" | tr ',' ' '); do
        found=$(printf '%s\n' "$table" | awk -v wanted="$index" '$1 == wanted { print $2; exit }')
        [ -n "$found" ] || return 0 # all or none: indices alone are better than half of the UUIDs
        named=$named,$found
    done
    printf '%s' "${named#,}"
}

shards_of() {
    [ "${GPULEDGER_SLURM_SHARDS:-}" = 1 ] || return 0
    briefly scontrol show job -d -o "$job" 2>/dev/null |
        sed -n "s/.* Nodes=${SLURMD_NODENAME:-[^ ]*} .* GRES=[^ ]*shard:\([a-z0-9_]*:\)\{0,1\}\([0-9][0-9]*\).*/\2/p" |
        head -n 1
}

main() {
    job=${SLURM_JOB_ID:-}
    case $job in
        '' | *[!0-9]*) say "SLURM_JOB_ID is '$job', no job id"; return ;;
    esac
    drivers=${GPULEDGER_NVIDIA_PROC:-/proc/driver/nvidia/gpus}
    gpus=${SLURM_JOB_GPUS:-} uuids=
    case ${CUDA_VISIBLE_DEVICES:-} in
        *GPU-* | *MIG-*) uuids=$CUDA_VISIBLE_DEVICES ;; # MIG instances, where Slurm names them itself
        [0-9]*) gpus=${gpus:-$CUDA_VISIBLE_DEVICES} ;; # in a prolog these are the true indices
    esac
    [ -n "$gpus$uuids" ] || return # a job without GPUs
    [ -n "$uuids" ] || uuids=$(uuids_of "$gpus")
    if ! mkdir -p "$jobs_dir" 2>/dev/null; then
        say "$jobs_dir cannot be made; job $job will not be attributed"
        return
    fi
    draft=$jobs_dir/.$job.$$
    if {
        entry job_id "$job"
        entry cluster "${SLURM_CLUSTER_NAME:-}"
        entry account "${SLURM_JOB_ACCOUNT:-}"
        entry user "${SLURM_JOB_USER:-}"
        entry uid "${SLURM_JOB_UID:-}"
        entry partition "${SLURM_JOB_PARTITION:-}"
        entry job_name "${SLURM_JOB_NAME:-}"
        entry comment "${SLURM_JOB_COMMENT:-}"
        entry wckey "${SLURM_JOB_WCKEY:-${SLURM_WCKEY:-}}"
        entry gpus "$gpus"
        entry uuids "$uuids"
        entry shards "${SLURM_SHARDS_ON_NODE:-$(shards_of)}"
        entry until "${SLURM_JOB_END_TIME:-}"
        entry boot_id "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
    } >"$draft" 2>/dev/null && mv -f "$draft" "$jobs_dir/$job" 2>/dev/null; then
        return
    fi
    rm -f "$draft" 2>/dev/null
    say "$jobs_dir/$job cannot be written; job $job will not be attributed"
}

main
exit 0
