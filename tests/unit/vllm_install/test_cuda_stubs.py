"""Which CUDA libraries get a stub, and with which functions."""

from vllm_install.cuda_stubs import Linkage, Stub, plan


def _linkage(
    *needed: str,
    undefined: tuple[str, ...] = (),
    defined: tuple[str, ...] = (),
    providers: dict[str, str] | None = None,
) -> Linkage:
    return Linkage(
        needed=frozenset(needed),
        providers=providers or {},
        undefined=frozenset(undefined),
        defined=frozenset(defined),
    )


def test_versioned_functions_go_to_the_library_of_their_version() -> None:
    linkage = _linkage(
        "libcudart.so.13",
        "libc.so.6",
        undefined=("cudaMalloc@libcudart.so.13", "malloc@GLIBC_2.2.5"),
        providers={"libcudart.so.13": "libcudart.so.13", "GLIBC_2.2.5": "libc.so.6"},
    )
    assert plan([linkage]) == {
        "libcudart.so.13": Stub(functions=frozenset({"cudaMalloc"}), version="libcudart.so.13")
    }


def test_functions_without_version_go_to_a_library_without_versions() -> None:
    torch = _linkage("libnccl.so.2", "libcufile.so.0", undefined=("ncclSend", "cuFileRead", "PyList_New"))
    assert plan([torch]) == {
        "libcufile.so.0": Stub(functions=frozenset({"ncclSend", "cuFileRead"}), version=None),
        "libnccl.so.2": Stub(functions=frozenset(), version=None),
    }


def test_what_torch_defines_itself_and_the_driver_get_none() -> None:
    linkages = [
        _linkage("libcuda.so.1", "libnccl.so.2", undefined=("cudaShim", "ncclSend")),
        _linkage(defined=("cudaShim",)),
    ]
    assert plan(linkages) == {"libnccl.so.2": Stub(functions=frozenset({"ncclSend"}), version=None)}
