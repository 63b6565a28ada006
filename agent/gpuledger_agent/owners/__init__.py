"""Who holds an accelerator: static rules, processes; later Slurm, Kubernetes, containers."""
