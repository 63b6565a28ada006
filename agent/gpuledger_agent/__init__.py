"""GPU Ledger's agent: samples accelerators, knows who holds them, and delivers what it saw without
losing it.
"""

__version__ = "0.1.0"
