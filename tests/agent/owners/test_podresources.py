"""The kubelet's protocol by its bytes alone: what a gRPC server once sent, torn, changed and slow;
no grpcio here.
"""

import contextlib
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_agent.owners.grpc_unix import CallFailed
from gpuledger_agent.owners.podresources import AllocatedDevice, AllocatedPod, list_pods, read_list
from gpuledger_agent.owners.protobuf import BadMessage, Reader

RECORDED = bytes.fromhex(
    "000018040000000000000400400000000500400000000600004000fe0300000001000004080000000000003f000100000004"
    "01000000000000040800000000000000000500000806000000000068abfe29a92edb3f00004e01040000000188400c636f6e"
    "74656e742d74797065106170706c69636174696f6e2f677270634014677270632d6163636570742d656e636f64696e671769"
    "64656e746974792c206465666c6174652c20677a6970000150000000000001000000014b0a7c0a07747261696e2d30120676"
    "6973696f6e1a650a046d61696e12430a0e6e76696469612e636f6d2f677075122b4750552d38633761326631302d33623434"
    "2d346130652d396435352d3061316232633364346535663a3a321a040a0208011a02020322140a066d656d6f727910808080"
    "80401a040a020801220202030a94010a05696e6665721206766973696f6e1a82010a046d61696e2a7a1209696e6665722d67"
    "70751a06766973696f6e22650a450a436b38732e6770752e6e76696469612e636f6d2f636c61696d3d30663165326433632d"
    "346235612d363937382d383739362d6135623463336432653166302d6770752d31120e6770752e6e76696469612e636f6d1a"
    "056e6f64653122056770752d310a340a0766726f6e742d3112037765621a200a046d61696e1a02020322140a066d656d6f72"
    "791080808080401a040a0208012202020300001e010500000001400b677270632d7374617475730130000c677270632d6d65"
    "737361676500"
)
"""All that grpcio 1.85's server sent in answer to List: settings, window, headers, data, a ping,
trailers.
"""
MESSAGE = RECORDED[
    RECORDED.index(b"\x0a\x7c\x0a\x07train-0") : RECORDED.index(
        b"\x00\x00\x1e\x01\x05\x00\x00\x00\x01"
    )
]
PODS = (
    AllocatedPod(
        "vision",
        "train-0",
        (AllocatedDevice("main", "nvidia.com/gpu", "GPU-8c7a2f10-3b44-4a0e-9d55-0a1b2c3d4e5f::2"),),
    ),
    AllocatedPod(
        "vision",
        "infer",
        (
            AllocatedDevice(
                "main",
                "gpu.nvidia.com",
                "gpu-1",
                ("k8s.gpu.nvidia.com/claim=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-gpu-1",),
                "infer-gpu",
                "node1",
                claim_namespace="vision",
            ),
        ),
    ),
    AllocatedPod("web", "front-1", ()),
)


@contextlib.contextmanager
def answering(path, answers, pause_s=0.0):
    """A server that answers each connection with the next bytes, one by one if there is a pause,
    and closes it.
    """
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(8)

    def serve():
        for answer in answers:
            line, _ = server.accept()
            with line, contextlib.suppress(OSError):
                line.settimeout(30)
                line.recv(65536)
                for piece in [bytes([byte]) for byte in answer] if pause_s else [answer]:
                    line.sendall(piece)
                    time.sleep(pause_s)

    worker = threading.Thread(target=serve, daemon=True)
    worker.start()
    try:
        yield path
    finally:
        server.close()


def test_what_a_server_once_sent_is_read(tmp_path):
    """Two pods with devices, one by a plugin and one by a claim; a third without any."""
    with answering(tmp_path / "kubelet.sock", [RECORDED]) as path:
        assert list_pods(path) == PODS


def test_an_answer_torn_at_any_byte_is_no_answer(tmp_path):
    """Only the last byte makes it whole: no list is ever a part of one, for a pod that is missing
    holds nothing.
    """
    pieces = [RECORDED[:length] for length in range(len(RECORDED))]
    with answering(tmp_path / "kubelet.sock", pieces) as path:
        for _ in pieces:
            with pytest.raises(CallFailed):
                list_pods(path)


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, b"\xff" * 9000]
)
def test_a_server_that_speaks_something_else_is_an_error_of_ours(tmp_path, said):
    """Whatever listens at the socket, the caller sees CallFailed."""
    with answering(tmp_path / "odd.sock", [said]) as path, pytest.raises(CallFailed):
        list_pods(path)


def test_any_changed_byte_gives_pods_or_an_error_of_ours(tmp_path):
    """Every byte of the answer is spoilt in turn; nothing but our own errors comes out."""
    spoilt = [
        RECORDED[:at] + bytes([byte ^ 0xFF]) + RECORDED[at + 1 :]
        for at, byte in enumerate(RECORDED)
    ]
    failed = 0
    with answering(tmp_path / "kubelet.sock", spoilt) as path:
        for _ in spoilt:
            try:
                list_pods(path, timeout_s=30)
            except (CallFailed, BadMessage):
                failed += 1
    assert failed > 100


def test_a_server_that_trickles_does_not_extend_the_deadline(tmp_path):
    """Each byte comes in time, the whole does not."""
    began = time.monotonic()
    with answering(tmp_path / "slow.sock", [RECORDED], pause_s=0.02) as path:
        with pytest.raises(CallFailed, match=r"no complete answer within 0\.4 s"):
            list_pods(path, timeout_s=0.4)
        assert time.monotonic() - began < len(RECORDED) * 0.02


def test_the_message_is_read_alone():
    """The reader needs no connection."""
    assert read_list(MESSAGE) == PODS


def test_a_pod_whose_bytes_are_known_is_not_read_again():
    """It is the same object; a changed one is read, and one that is gone is forgotten."""
    known = {}
    first = read_list(MESSAGE, known)
    assert first == PODS
    assert all(again is pod for again, pod in zip(read_list(MESSAGE, known), first, strict=True))
    changed = MESSAGE.replace(b"train-0", b"train-1")
    renamed, *others = read_list(changed, known)
    assert renamed.name == "train-1"
    assert others == list(PODS[1:])
    assert list(known.values()) == [renamed, *others]


def test_fields_that_later_kubelets_may_add_are_skipped():
    """Numbers, fixed words, texts and messages under numbers that we do not know."""
    later = b"\x98\x06\x01" + b"\xa1\x06" + bytes(8) + b"\xad\x06" + bytes(4) + b"\xb2\x06\x03new"
    assert read_list(later + MESSAGE + later) == PODS


@given(st.binary(max_size=400))
def test_random_bytes_are_read_or_refused(message):
    """The reader raises its own error and nothing else."""
    try:
        found = read_list(message)
    except BadMessage:
        return
    assert len(found) <= len(message)


@given(st.integers(0, len(MESSAGE)), st.integers(0, 255), st.integers(0, len(MESSAGE) - 1))
def test_a_torn_or_changed_message_is_read_or_refused(cut, byte, at):
    """Nearly right bytes reach deeper than random ones."""
    changed = bytearray(MESSAGE[:cut])
    if at < cut:
        changed[at] = byte
    with contextlib.suppress(BadMessage):
        assert len(read_list(bytes(changed))) <= len(changed)


def test_a_message_of_too_many_fields_is_refused():
    """Sixteen MiB of empty pods would be gigabytes of objects."""
    with pytest.raises(BadMessage, match="too many fields"):
        read_list(b"\x0a\x00" * 300_000)
    assert len(list(Reader(3).parts(b"\x0a\x00" * 3))) == 3
