"""Inference servers as far as an agent sees them: pages in the form of vLLM, Triton, TGI and
SGLang, over real HTTP.

The lines are those that the servers' own documentation shows, with their histograms and gauges
around the counters.
"""

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

VLLM = """\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{{generation="0"}} 10833.0
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}} 8.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}} {prompt:e}
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}} {generated}.0
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="meta-llama/Llama-3.1-8B-Instruct"}} {stop}.0
vllm:request_success_total{{engine="0",finished_reason="length",model_name="meta-llama/Llama-3.1-8B-Instruct"}} 3.0
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="meta-llama/Llama-3.1-8B-Instruct"}} 99.0
# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_sum{{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}} 12345.0
vllm:iteration_tokens_total_bucket{{engine="0",le="1.0",model_name="meta-llama/Llama-3.1-8B-Instruct"}} 3.0
"""

TRITON = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="resnet50",version="1"} 8192
nv_inference_request_success{model="bert-large",version="2"} 3401
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="resnet50",reason="OTHER",version="1"} 12
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="resnet50",version="1"} 65536
nv_inference_count{model="bert-large",version="2"} 3401
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-abc"} 0.73
"""

TGI = """\
# TYPE tgi_request_count counter
tgi_request_count 1007
# TYPE tgi_request_success counter
tgi_request_success 1000
# TYPE tgi_request_input_length histogram
tgi_request_input_length_bucket{le="40.96"} 20
tgi_request_input_length_sum 512000
tgi_request_input_length_count 1000
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="+Inf"} 1000
tgi_request_generated_tokens_sum 128000
tgi_request_generated_tokens_count 1000
# TYPE tgi_queue_size gauge
tgi_queue_size 0
"""

SGLANG = """\
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 8.128902e+06
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.557572e+06
# HELP sglang:num_requests_total Number of requests processed.
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 4097.0
"""

SGLANG_GPU = """\
process_start_time_seconds 1763750000.25
sglang:cached_tokens_total{cache_source="device",model_name="m"} 70.0
sglang:cached_tokens_total{cache_source="storage_mooncake",model_name="m"} 5.0
sglang:realtime_tokens_total{mode="prefill_compute",model_name="m",tp_rank="0"} 900.0
sglang:realtime_tokens_total{mode="prefill_cache",model_name="m",tp_rank="0"} 75.0
sglang:realtime_tokens_total{mode="decode",model_name="m",tp_rank="0"} 300.0
sglang:gpu_execution_seconds_total{category="forward_extend",model_name="m",tp_rank="0"} 1.5004
sglang:gpu_execution_seconds_total{category="forward_decode",model_name="m",tp_rank="0"} 2.25
sglang:gpu_execution_seconds_total{category="forward_target_verify",model_name="m",tp_rank="0"} 0.5
sglang:gpu_execution_seconds_total{category="forward_mixed",model_name="m",tp_rank="0"} 0.125
sglang:gpu_execution_seconds_total{category="forward_idle",model_name="m",tp_rank="0"} 9.0
sglang:dp_cooperation_gpu_execution_seconds_total{category="forward_decode",model_name="m",tp_rank="0"} 2.25
"""
"""Written from SGLang's metrics_collector.py; never run here."""


def vllm(prompt: int, generated: int, stop: int, started: float = 1_763_750_000.25) -> str:
    """A page of vLLM with these counters; three more requests were cut at their length, 99 were
    aborted.
    """
    return VLLM.format(prompt=prompt, generated=generated, stop=stop, started=started)


class Pages:
    """What the server answers: `page` gives the text anew for each request; `status` other than 200
    is an error.
    """

    def __init__(self, page: Callable[[], str]) -> None:
        self.page = page
        self.status = 200
        self.asked = 0
        self.url = ""


@contextmanager
def serving(page: Callable[[], str]) -> Iterator[Pages]:
    """An endpoint on a free port of loopback."""
    pages = Pages(page)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages.asked += 1
            body = pages.page().encode()
            self.send_response(pages.status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    pages.url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield pages
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
