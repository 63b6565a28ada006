"""The parts of the wire that the HTTP surface shows; only this package imports the agent's wire."""

from gpuledger_common.wire import MAX_BODY_BYTES as MAX_BODY_BYTES
from gpuledger_common.wire import MAX_DECODED_BYTES as MAX_DECODED_BYTES
from gpuledger_common.wire import Answer as Answer
from gpuledger_common.wire import Batch as Batch
