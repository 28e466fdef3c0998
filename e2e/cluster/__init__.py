"""A Kubernetes cluster on one machine for tests and demos: `with open_cluster() as cluster: ...`.

Three backends behind one class, chosen by E2E_CLUSTER: "builtin" (default) runs Kubernetes without Docker
in namespaces of its own, "kind" makes a kind cluster, "current" uses the current kubeconfig.
`python -m cluster --help` tells of the command. What is here must not import the project's own packages:
it packs them into images, whether they work or not.
"""

from cluster.base import Cluster
from cluster.errors import ClusterError
from cluster.opening import missing, open_cluster

__all__ = ["Cluster", "ClusterError", "missing", "open_cluster"]
