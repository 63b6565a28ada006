"""The exact core: standard library only, integers and Decimal, no clock, no float, no I/O."""
