"""A kubelet on a unix socket: a real gRPC server (grpcio) that speaks pod-resources v1 with
google's own protobuf.

The messages are declared here from the public API (kubernetes/kubelet
pkg/apis/podresources/v1/api.proto), as a descriptor instead of a .proto file, so that no compiler
is needed; unknown to the agent are `topology`, `memory` and `cpu_ids`, which real kubelets send.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TEXT, _INT64, _UINT64, _MESSAGE = 9, 3, 4, 11
_SHAPES = {
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [(1, "pod_resources", "PodResources*")],
    "PodResources": [
        (1, "name", "text"),
        (2, "namespace", "text"),
        (3, "containers", "ContainerResources*"),
        (4, "cpu_ids", "int64*"),
        (5, "memory", "ContainerMemory*"),
    ],
    "ContainerResources": [
        (1, "name", "text"),
        (2, "devices", "ContainerDevices*"),
        (3, "cpu_ids", "int64*"),
        (4, "memory", "ContainerMemory*"),
        (5, "dynamic_resources", "DynamicResource*"),
    ],
    "ContainerMemory": [
        (1, "memory_type", "text"),
        (2, "size", "uint64"),
        (3, "topology", "TopologyInfo"),
    ],
    "TopologyInfo": [(1, "nodes", "NUMANode*")],
    "NUMANode": [(1, "ID", "int64")],
    "ContainerDevices": [
        (1, "resource_name", "text"),
        (2, "device_ids", "text*"),
        (3, "topology", "TopologyInfo"),
    ],
    "DynamicResource": [
        (2, "claim_name", "text"),
        (3, "claim_namespace", "text"),
        (4, "claim_resources", "ClaimResource*"),
    ],
    "ClaimResource": [
        (1, "cdi_devices", "CDIDevice*"),
        (2, "driver_name", "text"),
        (3, "pool_name", "text"),
        (4, "device_name", "text"),
        (5, "share_id", "text"),
    ],
    "CDIDevice": [(1, "name", "text")],
}


def _classes():
    file = descriptor_pb2.FileDescriptorProto(
        name="podresources_v1.proto", package="v1", syntax="proto3"
    )
    scalars = {"text": _TEXT, "int64": _INT64, "uint64": _UINT64}
    for name, fields in _SHAPES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            base = kind.rstrip("*")
            declared = message.field.add(
                name=field, number=number, label=3 if kind.endswith("*") else 1
            )
            declared.type = scalars.get(base, _MESSAGE)
            if base not in scalars:
                declared.type_name = f".v1.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}"))
        for name in _SHAPES
    }


_CLASSES = _classes()
Response = _CLASSES["ListPodResourcesResponse"]


def pod(namespace, name, *device_ids, resource="nvidia.com/gpu", container="main"):
    """A pod that was given devices by a device plugin, with the fields around them that real
    kubelets fill.
    """
    made = _CLASSES["PodResources"](namespace=namespace, name=name, cpu_ids=[2, 3])
    inside = made.containers.add(name=container, cpu_ids=[2, 3])
    memory = inside.memory.add(memory_type="memory", size=1 << 34)
    memory.topology.nodes.add(ID=1)
    if device_ids:
        devices = inside.devices.add(resource_name=resource, device_ids=device_ids)
        devices.topology.nodes.add(ID=1)
    return made


def claiming_pod(
    namespace,
    name,
    *devices,
    driver="gpu.nvidia.com",
    container="main",
    cdi=(),
    claim="",
    share="",
    pool="node1",
):
    """A pod that was given devices, or a share of them, through a resource claim (DRA)."""
    made = _CLASSES["PodResources"](namespace=namespace, name=name)
    claimed = made.containers.add(name=container).dynamic_resources.add(
        claim_name=claim or f"{name}-gpu", claim_namespace=namespace
    )
    for device in devices:
        given = claimed.claim_resources.add(
            driver_name=driver, pool_name=pool, device_name=device, share_id=share
        )
        for one in cdi or (f"k8s.{driver}/claim=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-{device}",):
            given.cdi_devices.add(name=one)
    return made


def answer(*pods):
    """The bytes of a ListPodResourcesResponse."""
    return Response(pod_resources=pods).SerializeToString()


class Kubelet:
    """`pods` are listed; `behave`, if set, is called with the gRPC context instead and gives the
    bytes.
    """

    def __init__(self, socket_path):
        self.path, self.pods, self.behave, self.calls = socket_path, [], None, 0
        self._pool = self._server = None

    def start(self):
        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool)
        handler = grpc.unary_unary_rpc_method_handler(
            self._list, request_deserializer=_CLASSES["ListPodResourcesRequest"].FromString
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self):
        if self._server is not None:
            self._server.stop(0).wait()
            self._pool.shutdown(wait=False)
            self._server = None

    def _list(self, request, context):
        self.calls += 1
        return answer(*self.pods) if self.behave is None else self.behave(context)


@contextlib.contextmanager
def running(socket_path):
    """A kubelet that answers at a socket until the end of the block."""
    kubelet = Kubelet(socket_path)
    kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()
