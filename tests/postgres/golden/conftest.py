"""The fleet that the rich ledger is made of."""

from fakes.ledger import fleet

__all__ = ["fleet"]
