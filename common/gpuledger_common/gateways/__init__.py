"""Gateway profiles: how the series of a gateway before inference servers become token counts of
tenants, declared in TOML files.
"""
