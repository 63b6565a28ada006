"""The collector's HTTP surface."""

from starlette.convertors import register_url_convertor

from gpuledger_collector.api.names import NameConvertor

register_url_convertor("name", NameConvertor())
