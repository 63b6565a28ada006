"""One module a board; each has `BOARD`."""
