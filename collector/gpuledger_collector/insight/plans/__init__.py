"""Plans: what a model needs before it runs (memory, days and money, storage, network).

Pure formulas, a frozen dataclass in and a frozen dataclass out, in base units that the names carry.
Each module names the source of its formulas and what they leave out. `hardware` and `architecture`
hold the published figures as data. Everything here is an estimate: nothing of it can reach a bill.
A question that makes no sense is a ValueError whose message is for people.
"""
