# Made by deploy/completions/generate; change the command line, not this file.

_gpuledger_agent() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} offered
    if [ "$COMP_CWORD" -eq 1 ]; then
        offered='check goodbye once queue record release resume run simulate --help --version'
    else
        case ${COMP_WORDS[1]}:$before in
        check:--config) COMPREPLY=($(compgen -f -- "$word")); return ;;
        check:--source) offered='nvml exporter dcgm simulated replay' ;;
        check:--target) COMPREPLY=($(compgen -f -- "$word")); return ;;
        check:--profile) COMPREPLY=($(compgen -f -- "$word")); return ;;
        check:--node) return ;;
        check:*) offered='-h --help --config --source --target --profile --node' ;;
        goodbye:--config) COMPREPLY=($(compgen -f -- "$word")); return ;;
        goodbye:--source) offered='nvml exporter dcgm simulated replay' ;;
        goodbye:--target) COMPREPLY=($(compgen -f -- "$word")); return ;;
        goodbye:--profile) COMPREPLY=($(compgen -f -- "$word")); return ;;
        goodbye:--node) return ;;
        goodbye:*) offered='-h --help --config --source --target --profile --node' ;;
        once:--config) COMPREPLY=($(compgen -f -- "$word")); return ;;
        once:--source) offered='nvml exporter dcgm simulated replay' ;;
        once:--target) COMPREPLY=($(compgen -f -- "$word")); return ;;
        once:--profile) COMPREPLY=($(compgen -f -- "$word")); return ;;
        once:--node) return ;;
        once:*) offered='-h --help --config --source --target --profile --node --json' ;;
        queue:--config) COMPREPLY=($(compgen -f -- "$word")); return ;;
        queue:--source) offered='nvml exporter dcgm simulated replay' ;;
        queue:--target) COMPREPLY=($(compgen -f -- "$word")); return ;;
        queue:--profile) COMPREPLY=($(compgen -f -- "$word")); return ;;
        queue:--node) return ;;
        queue:--pool) return ;;
        queue:--name) return ;;
        queue:--every) return ;;
        queue:*) offered='-h --help --config --source --target --profile --node --slurm --kubernetes --pool --name --every --print' ;;
        record:--config) COMPREPLY=($(compgen -f -- "$word")); return ;;
        record:--source) offered='nvml exporter dcgm simulated replay' ;;
        record:--target) COMPREPLY=($(compgen -f -- "$word")); return ;;
        record:--profile) COMPREPLY=($(compgen -f -- "$word")); return ;;
        record:--node) return ;;
        record:--seconds) return ;;
        record:--interval) return ;;
        record:*) offered='-h --help --config --source --target --profile --node --seconds --interval' ;;
        release:--config) COMPREPLY=($(compgen -f -- "$word")); return ;;
        release:--source) offered='nvml exporter dcgm simulated replay' ;;
        release:--target) COMPREPLY=($(compgen -f -- "$word")); return ;;
        release:--profile) COMPREPLY=($(compgen -f -- "$word")); return ;;
        release:--node) return ;;
        release:--for) return ;;
        release:*) offered='-h --help --config --source --target --profile --node --for' ;;
        resume:--config) COMPREPLY=($(compgen -f -- "$word")); return ;;
        resume:--source) offered='nvml exporter dcgm simulated replay' ;;
        resume:--target) COMPREPLY=($(compgen -f -- "$word")); return ;;
        resume:--profile) COMPREPLY=($(compgen -f -- "$word")); return ;;
        resume:--node) return ;;
        resume:*) offered='-h --help --config --source --target --profile --node' ;;
        run:--config) COMPREPLY=($(compgen -f -- "$word")); return ;;
        run:--source) offered='nvml exporter dcgm simulated replay' ;;
        run:--target) COMPREPLY=($(compgen -f -- "$word")); return ;;
        run:--profile) COMPREPLY=($(compgen -f -- "$word")); return ;;
        run:--node) return ;;
        run:*) offered='-h --help --config --source --target --profile --node --check-config' ;;
        simulate:--config) COMPREPLY=($(compgen -f -- "$word")); return ;;
        simulate:--source) offered='nvml exporter dcgm simulated replay' ;;
        simulate:--target) COMPREPLY=($(compgen -f -- "$word")); return ;;
        simulate:--profile) COMPREPLY=($(compgen -f -- "$word")); return ;;
        simulate:--node) return ;;
        simulate:--from) return ;;
        simulate:--to) return ;;
        simulate:--step) return ;;
        simulate:--collector) return ;;
        simulate:--only) return ;;
        simulate:--without) return ;;
        simulate:--asked) COMPREPLY=($(compgen -f -- "$word")); return ;;
        simulate:--pages) return ;;
        simulate:*) offered='-h --help --config --source --target --profile --node --from --to --step --collector --only --without --story --asked --pages --list-nodes' ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$offered" -- "$word"))
}
complete -o default -F _gpuledger_agent gpuledger-agent
