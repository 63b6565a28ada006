"""What people declare: rules, prices, budgets, pools, contacts; each kind is one model that is read
and written.

To add a kind of table:

1. Write its model, a `Declaration` (`model.py`), in the module of its subject. Its fields are named
   like those of the accounting value, `alias` is the key in the file, and the types of `fields.py`
   read, check and write the values.
2. Add a line to `KINDS` (`kinds.py`) with the functions of storage that read and replace what is in
   force.

`gpuledger apply` then reads it, `gpuledger export config` writes it, and the tests of both see it.
"""
