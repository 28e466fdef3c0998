"""Certificates: who they are for, who vouches for them, and that a kubeconfig carries all it needs."""

import base64
import datetime
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from cluster import pki

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SERVER = "https://10.99.0.1:6443"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("cluster") / "pki"
    pki.write_pki(
        target,
        server=SERVER,
        server_names=("10.99.0.1", "127.0.0.1", "10.96.0.1"),
        node="node1",
        node_address="10.99.0.1",
        now=NOW,
    )
    return target


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(certificate: x509.Certificate) -> set[str]:
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in extension.get_values_for_type(x509.IPAddress)}
    return addresses | set(extension.get_values_for_type(x509.DNSName))


def test_api_server_answers_to_all_its_names(folder: Path) -> None:
    expected = {"10.99.0.1", "127.0.0.1", "10.96.0.1", "localhost", "kubernetes.default.svc.cluster.local"}
    assert expected <= names(load(folder / "apiserver.crt"))


def test_kubelet_answers_to_its_node_and_address(folder: Path) -> None:
    assert names(load(folder / "kubelet-server.crt")) == {"node1", "10.99.0.1"}


SUBJECTS = [
    pytest.param("admin", "CN=admin,O=system:masters", id="admin"),
    pytest.param("scheduler", "CN=system:kube-scheduler", id="scheduler"),
    pytest.param("controller-manager", "CN=system:kube-controller-manager", id="controller manager"),
    pytest.param("kubelet", "CN=system:node:node1,O=system:nodes", id="node"),
]


@pytest.mark.parametrize(("name", "subject"), SUBJECTS)
def test_clients_are_who_kubernetes_expects(folder: Path, name: str, subject: str) -> None:
    parts = load(folder / f"{name}.crt").subject.rfc4514_string().split(",")
    assert sorted(parts) == sorted(subject.split(","))


@pytest.mark.parametrize(
    ("name", "authority"),
    [
        pytest.param("apiserver", "ca", id="server"),
        pytest.param("admin", "ca", id="client"),
        pytest.param("front-proxy", "front-proxy-ca", id="front proxy has its own authority"),
    ],
)
def test_signed_by_the_right_authority(folder: Path, name: str, authority: str) -> None:
    certificate, issuer = load(folder / f"{name}.crt"), load(folder / f"{authority}.crt")
    certificate.verify_directly_issued_by(issuer)
    assert issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert certificate.not_valid_before_utc < NOW < certificate.not_valid_after_utc


def test_kubeconfig_has_everything_inside(folder: Path) -> None:
    document = yaml.safe_load((folder / "admin.kubeconfig").read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    assert cluster["server"] == SERVER
    assert base64.b64decode(cluster["certificate-authority-data"]) == (folder / "ca.crt").read_bytes()
    assert base64.b64decode(user["client-key-data"]) == (folder / "admin.key").read_bytes()


def test_nobody_else_may_read_keys(folder: Path) -> None:
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
