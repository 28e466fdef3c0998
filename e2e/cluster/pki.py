"""The cluster's certificates and kubeconfigs, made anew for each cluster and valid for a week."""

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=7)
SERVICE_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
)
USERS = {
    "admin": ("system:masters", "admin"),
    "netpol": ("system:masters", "netpol"),
    "apiserver-kubelet-client": ("system:masters", "kube-apiserver-kubelet-client"),
    "controller-manager": ("", "system:kube-controller-manager"),
    "scheduler": ("", "system:kube-scheduler"),
    "proxy": ("", "system:kube-proxy"),
}
"""Client certificates: file name to (organization, common name), which Kubernetes reads as (group, user)."""


@dataclass(frozen=True)
class Signed:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def certificate_pem(self) -> bytes:
        """The certificate alone."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        """The private key, not encrypted."""
        return private_pem(self.key)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS #8 PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def alternative_names(names: Sequence[str]) -> list[x509.GeneralName]:
    """Subject alternative names: addresses as addresses, all else as DNS names."""
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def sign(
    common_name: str,
    *,
    now: datetime.datetime,
    issuer: Signed | None = None,
    organization: str = "",
    names: Sequence[str] = (),
) -> Signed:
    """Make a key and a certificate for it, signed by `issuer` (None: an authority that signs itself)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        subject.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    name = x509.Name(subject)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.certificate.subject if issuer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names(names)), critical=False)
    return Signed(builder.sign((issuer.key if issuer else key), hashes.SHA256()), key)


def kubeconfig(*, server: str, authority: bytes, client: Signed) -> str:
    """A kubeconfig with everything inside."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "rolloutpool",
        "clusters": [
            {
                "name": "rolloutpool",
                "cluster": {"server": server, "certificate-authority-data": _base64(authority)},
            }
        ],
        "users": [
            {
                "name": "client",
                "user": {
                    "client-certificate-data": _base64(client.certificate_pem()),
                    "client-key-data": _base64(client.key_pem()),
                },
            }
        ],
        "contexts": [{"name": "rolloutpool", "context": {"cluster": "rolloutpool", "user": "client"}}],
    }
    return yaml.safe_dump(document, sort_keys=False)


def write_pki(
    folder: Path,
    *,
    server: str,
    server_names: Sequence[str],
    node: str,
    node_address: str,
    now: datetime.datetime,
) -> None:
    """Write all keys, certificates and kubeconfigs; components reach the API server at `server` (a URL)."""
    folder.mkdir(mode=0o700)
    authority, front_proxy = sign("rolloutpool-ca", now=now), sign("front-proxy-ca", now=now)
    service_accounts = ec.generate_private_key(ec.SECP256R1())
    pairs = {
        "apiserver": sign("kube-apiserver", now=now, issuer=authority, names=(*server_names, *SERVICE_NAMES)),
        "front-proxy": sign("front-proxy-client", now=now, issuer=front_proxy),
        "kubelet-server": sign(node, now=now, issuer=authority, names=(node, node_address)),
    }
    clients = {
        name: sign(user, now=now, issuer=authority, organization=group)
        for name, (group, user) in USERS.items()
    }
    clients["kubelet"] = sign(f"system:node:{node}", now=now, issuer=authority, organization="system:nodes")
    _write(folder / "ca.crt", authority.certificate_pem())
    _write(folder / "ca.key", authority.key_pem())
    _write(folder / "front-proxy-ca.crt", front_proxy.certificate_pem())
    _write(folder / "sa.key", private_pem(service_accounts))
    _write(
        folder / "sa.pub",
        service_accounts.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )
    for name, pair in {**pairs, **clients}.items():
        _write(folder / f"{name}.crt", pair.certificate_pem())
        _write(folder / f"{name}.key", pair.key_pem())
    for name, client in clients.items():
        config = kubeconfig(server=server, authority=authority.certificate_pem(), client=client)
        _write(folder / f"{name}.kubeconfig", config.encode())


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
