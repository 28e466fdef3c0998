"""The RolloutPool object: Pydantic models of spec and status, labels, conditions, and the CRD made from them.

The only description of the API. No I/O and no clock in here, but for `crdgen`, which writes the CRD file.
"""
