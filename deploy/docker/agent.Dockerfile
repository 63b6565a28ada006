# The agent: few and small dependencies, no root. Build in the repository's root:
#   docker build -f deploy/docker/agent.Dockerfile -t gpuledger-agent .
# Behind a proxy, with your own authority or index: the build arguments of collector.Dockerfile.
# NVML comes with the driver: run it with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=utility.
ARG PYTHON=3.11-slim-bookworm
FROM python:${PYTHON} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG CA_CERTIFICATES
WORKDIR /src
RUN cp /etc/ssl/certs/ca-certificates.crt /opt/gpuledger-ca.pem && printf '%s\n' "$CA_CERTIFICATES" >> /opt/gpuledger-ca.pem
ENV PIP_CERT=/opt/gpuledger-ca.pem PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv --without-pip /opt/gpuledger
COPY requirements/agent.txt requirements/agent.txt
RUN python -m pip --python /opt/gpuledger install --no-compile --require-hashes --requirement requirements/agent.txt
COPY pyproject.toml README.md LICENSE ./
COPY common common
COPY agent agent
COPY collector collector
COPY alembic alembic
COPY dashboards dashboards
COPY examples examples
COPY docs/man docs/man
COPY deploy/completions deploy/completions
RUN python -m pip --python /opt/gpuledger install --no-compile --no-deps .
RUN rm -r /opt/gpuledger/lib/python3*/site-packages/gpuledger_collector /opt/gpuledger/bin/gpuledger
# Demonstrations run in the collector's image.
RUN cd /opt/gpuledger/lib/python3*/site-packages/gpuledger_agent && rm simulate.py sources/fleet.py sources/simulated.py
COPY deploy/docker/slim.py slim.py
RUN /opt/gpuledger/bin/python slim.py gpuledger_common gpuledger_agent
RUN /opt/gpuledger/bin/gpuledger-agent --help

FROM python:${PYTHON}
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/gpuledger-agent --shell /usr/sbin/nologin gpuledger
COPY --from=build /opt/gpuledger /opt/gpuledger
ENV PATH=/opt/gpuledger/bin:$PATH PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=1 GPULEDGER_AGENT_SPOOL_DIR=/var/lib/gpuledger-agent/spool GPULEDGER_AGENT_METRICS_LISTEN=0.0.0.0:9440 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=utility
USER 10001:10001
WORKDIR /var/lib/gpuledger-agent
EXPOSE 9440
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=4 CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9440/metrics', timeout=4)"]
ENTRYPOINT ["gpuledger-agent"]
CMD ["run"]
