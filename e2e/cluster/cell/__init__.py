"""The cell: network, mount and pid namespaces in which a whole cluster runs and with which it ends.

`init` is process 1 inside, `handle` is what the caller holds, `relay` lends an address of the cell to the
machine's loopback, `cgroups` makes and removes the one thing that namespaces do not contain.
`init` and `relay` start as processes of their own.

`init` must not keep anything that outlives it: the end of its input ends and undoes all, on whatever way.
"""
