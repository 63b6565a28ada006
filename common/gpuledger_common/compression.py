"""zstd: the standard library's where it has it (Python 3.14), else its backport."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd
