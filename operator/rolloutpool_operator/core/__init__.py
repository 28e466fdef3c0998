"""What the operator decides: frozen observations in, manifests, conditions and caps out.

No I/O, no clock, no Kubernetes client in here.
"""
