"""The database server: the embedded one, migrations, backups, replicas of the collector and
distribution.
"""
