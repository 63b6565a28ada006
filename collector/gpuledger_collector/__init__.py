"""GPU Ledger's collector: stores samples, decides who owned every GPU-second, and prices it
exactly.
"""

__version__ = "0.1.0"
