def compare(seed: int, rate: float) -> None:
    """Later."""
