# The collector: one image, no compiler, no root. Build in the repository's root:
#   docker build -f deploy/docker/collector.Dockerfile -t gpuledger-collector .
ARG PYTHON=3.11-slim-bookworm
FROM python:${PYTHON} AS build
WORKDIR /src
COPY requirements/collector.txt requirements/collector.txt
RUN python -m venv /opt/gpuledger
RUN /opt/gpuledger/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement requirements/collector.txt
COPY pyproject.toml README.md LICENSE ./
COPY common common
COPY agent agent
COPY collector collector
COPY alembic alembic
RUN /opt/gpuledger/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps .
RUN /opt/gpuledger/bin/gpuledger --version

FROM python:${PYTHON}
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/gpuledger --shell /usr/sbin/nologin gpuledger
COPY --from=build /opt/gpuledger /opt/gpuledger
ENV PATH=/opt/gpuledger/bin:$PATH PYTHONUNBUFFERED=1 GPULEDGER_DATA_DIR=/var/lib/gpuledger
USER 10001:10001
WORKDIR /var/lib/gpuledger
EXPOSE 8440
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=4 CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8440/readyz', timeout=4)"]
ENTRYPOINT ["gpuledger"]
CMD ["serve", "--config", "/etc/gpuledger/collector.toml"]
