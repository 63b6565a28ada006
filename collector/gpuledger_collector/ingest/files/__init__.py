"""Files that people import: read with line and column, every bad cell reported at once as a
Problem.
"""
