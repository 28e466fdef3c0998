"""Command lines and configuration files of the cluster's components, as pure functions of a `Layout`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

SERVICE_CIDR, POD_CIDR = "10.96.0.0/16", "10.88.0.0/16"
API_SERVICE, DNS_SERVICE = "10.96.0.1", "10.96.0.10"
QUEUE = 100
"""Netfilter queue in which the NetworkPolicy enforcer judges new connections."""
Files = Mapping[str, str]
Commands = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where one cluster's parts are. In cells all clusters may have the same addresses; outside not."""

    folder: Path
    address: str
    api_port: int = 6443
    etcd_port: int = 2379
    etcd_peer_port: int = 2380
    node: str = "node1"
    cgroup: str = ""
    debian: Path = Path("/")
    has_node: bool = True

    @property
    def server(self) -> str:
        """URL at which the components reach the API server."""
        return f"https://{self.address}:{self.api_port}"

    @property
    def pki(self) -> Path:
        """Folder of keys, certificates and kubeconfigs."""
        return self.folder / "pki"

    @property
    def containerd_socket(self) -> Path:
        """Containerd's socket; /run is the cell's own and keeps the path short enough for a socket."""
        return Path("/run/rolloutpool/containerd.sock")


def cell_environment(layout: Layout) -> dict[str, str]:
    """The whole environment of the components: nothing of the caller's gets in."""
    debian = layout.debian
    library = next(iter(sorted(debian.glob("usr/lib/*-linux-gnu"))), debian / "usr/lib")
    folders = [debian / folder for folder in ("usr/bin", "usr/sbin", "bin", "sbin")]
    environment = {"PATH": ":".join(["/usr/sbin", "/usr/bin", "/sbin", "/bin"]), "HOME": str(layout.folder)}
    if layout.has_node:
        environment["PATH"] = ":".join([*map(str, folders), environment["PATH"]])
        environment["LD_LIBRARY_PATH"] = str(library)
        environment["XTABLES_LIBDIR"] = str(library / "xtables")
        environment["CONTAINERD_ADDRESS"] = str(layout.containerd_socket)
        environment["CONTAINERD_NAMESPACE"] = "k8s.io"
    return environment


def etcd(layout: Layout, program: Path) -> tuple[str, ...]:
    """The store; without fsync, since nothing has to outlive the machine."""
    client, peer = (f"http://127.0.0.1:{port}" for port in (layout.etcd_port, layout.etcd_peer_port))
    return (
        str(program),
        f"--data-dir={layout.folder}/etcd",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    )


def apiserver(layout: Layout, program: Path) -> tuple[str, ...]:
    """The API server with the Node and RBAC authorizers and front-proxy certificates for aggregation."""
    pki = layout.pki
    if layout.has_node:
        # The default reconciler makes this the endpoint of `kubernetes.default`, so pods can reach it.
        addresses = [f"--bind-address={layout.address}", f"--advertise-address={layout.address}"]
    else:
        # A loopback address is refused as an endpoint, so there is none (192.0.2.1 is nobody's).
        addresses = [
            f"--bind-address={layout.address}",
            "--advertise-address=192.0.2.1",
            "--endpoint-reconciler-type=none",
        ]
    return (
        str(program),
        f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
        *addresses,
        f"--secure-port={layout.api_port}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
    )


def controller_manager(layout: Layout, program: Path) -> tuple[str, ...]:
    """All default controllers; no leader election, there is only one."""
    pki = layout.pki
    return (
        str(program),
        *_identity(layout, "controller-manager"),
        "--use-service-account-credentials=true",
        f"--root-ca-file={pki}/ca.crt",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        f"--flex-volume-plugin-dir={layout.folder}/volume-plugins",
        f"--cluster-cidr={POD_CIDR}",
        "--allocate-node-cidrs=false",
        # With the default of 20 requests/s it spends its first four seconds on its own service accounts.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    )


def scheduler(layout: Layout, program: Path) -> tuple[str, ...]:
    """The default scheduler."""
    return (str(program), *_identity(layout, "scheduler"))


def _identity(layout: Layout, name: str) -> list[str]:
    path = layout.pki / f"{name}.kubeconfig"
    flags = [
        f"--{flag}={path}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    ]
    # Outside a cell their ports could collide with another cluster's, so there they serve none.
    port = [] if layout.has_node else ["--secure-port=0"]
    return [*flags, "--bind-address=127.0.0.1", "--leader-elect=false", *port]


def containerd(layout: Layout, program: Path) -> tuple[str, ...]:
    """The container runtime."""
    return (str(program), "--config", f"{layout.folder}/containerd.toml")


def kubelet(layout: Layout, program: Path, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The node's agent; `labels` go onto the Node when it registers."""
    return (
        str(program),
        f"--config={layout.folder}/kubelet.yaml",
        f"--kubeconfig={layout.pki}/kubelet.kubeconfig",
        f"--hostname-override={layout.node}",
        f"--node-ip={layout.address}",
        "--root-dir=/var/lib/kubelet",
        f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
    )


def proxy(layout: Layout, program: Path) -> tuple[str, ...]:
    """Service addresses."""
    return (str(program), f"--config={layout.folder}/proxy.yaml")


def netpol(layout: Layout, program: Path) -> tuple[str, ...]:
    """NetworkPolicy."""
    return (
        str(program),
        f"-kubeconfig={layout.pki}/netpol.kubeconfig",
        f"-node={layout.node}",
        f"-queue={QUEUE}",
    )


def control_plane_commands(layout: Layout, programs: Mapping[str, Path]) -> Commands:
    """The components that every cluster has, in the order of their start."""
    return {
        "etcd": etcd(layout, programs["etcd"]),
        "apiserver": apiserver(layout, programs["kube-apiserver"]),
        "controller-manager": controller_manager(layout, programs["kube-controller-manager"]),
        "scheduler": scheduler(layout, programs["kube-scheduler"]),
    }


def node_commands(layout: Layout, programs: Mapping[str, Path], labels: Mapping[str, str]) -> Commands:
    """The components of the node, in the order of their start."""
    return {
        "containerd": containerd(layout, layout.debian / "usr/bin/containerd"),
        "kubelet": kubelet(layout, programs["kubelet"], labels),
        "proxy": proxy(layout, programs["kube-proxy"]),
        "netpol": netpol(layout, programs["netpol"]),
    }


def node_files(layout: Layout, *, pause_image: str) -> Files:
    """Configuration files of the node's components, by their path below `layout.folder`."""
    return {
        "containerd.toml": _containerd_toml(layout, pause_image),
        "cni/10-bridge.conflist": json.dumps(_cni(), indent=1),
        "kubelet.yaml": yaml.safe_dump(_kubelet_config(layout)),
        "proxy.yaml": yaml.safe_dump(_proxy_config(layout)),
    }


def _containerd_toml(layout: Layout, pause_image: str) -> str:
    # Its state holds the containers' mounts: below /run, which is the cell's own, they end with the cell.
    return f"""\
version = 2
root = "{layout.folder}/containerd"
state = "/run/rolloutpool/containerd"
[grpc]
address = "{layout.containerd_socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{layout.folder}/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause_image}"
stream_server_address = "127.0.0.1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{layout.debian}/usr/lib/cni"
conf_dir = "{layout.folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def _cni() -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_CIDR}]]},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap, {"type": "loopback"}]}


def _kubelet_config(layout: Layout) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.address,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "tlsCertFile": f"{layout.pki}/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{layout.pki}/kubelet-server.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": ["pods"],
        "clusterDomain": "cluster.local",
        "clusterDNS": [DNS_SERVICE],
        "resolvConf": "",
        "podLogsDir": f"{layout.folder}/pod-logs",
        "volumePluginDir": f"{layout.folder}/volume-plugins",
        # Images come from files, not from a registry: one removed for a full disk would not come back.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def _proxy_config(layout: Layout) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{layout.pki}/proxy.kubeconfig"},
        "hostnameOverride": layout.node,
        "bindAddress": layout.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clusterCIDR": POD_CIDR,
        "conntrack": {"maxPerCore": 0, "min": 0},  # 0: leave the machine's limits alone
        # With the default of 1 s a Service may refuse connections in the second after its pods are Ready.
        "nftables": {"minSyncPeriod": "50ms"},
    }
