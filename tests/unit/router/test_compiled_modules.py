"""Which modules are compiled, what they must not hold, and where builds are kept; without compiling."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

import compile_router
from compile_router import ROUTER, broken, compile_into, files, modules


def test_each_is_listed_once() -> None:
    assert len(set(files())) == len(files()) == len(modules())


@pytest.mark.parametrize("file", files(), ids=str)
def test_a_compiled_module_can_be_compiled(file: Path) -> None:
    assert list(broken((ROUTER / file).read_text())) == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        pytest.param(
            "class A:\n    @cached_property\n    def b(self): ...", "3: b uses cached_property", id="bare"
        ),
        pytest.param(
            "class A:\n    @functools.cached_property\n    def b(self): ...", "3: b", id="qualified"
        ),
        pytest.param("class A(msgspec.Struct): ...", "1: A uses Struct", id="struct"),
        pytest.param("class A(Struct, frozen=True): ...", "1: A uses Struct", id="imported-struct"),
        pytest.param("def f():\n    class A(BaseModel): ...", "2: A uses BaseModel", id="nested"),
        pytest.param("class A(B, flag=True): ...", "1: class A(..., flag=True)", id="keyword"),
    ],
)
def test_what_would_silently_change_is_refused(source: str, told: str) -> None:
    assert next(broken(source)).startswith(told)


def test_what_only_sounds_like_it_is_not() -> None:
    source = "@dataclass(frozen=True)\nclass Structure(Generic[T]):\n    @property\n    def cached(self): ..."
    assert list(broken(source)) == []


def test_the_image_is_compiled_by_the_mypy_that_the_tests_ran_on() -> None:
    assert f'"mypy[mypyc]=={version("mypy")}"' in (ROUTER / "Dockerfile").read_text()


class TestCache:
    @pytest.fixture(autouse=True)
    def _builds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = tmp_path / "rolloutpool" / "compiled"
        self.built: list[Path] = []
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(compile_router, "compile_into", self.built.append)

    def test_a_build_is_made_once_and_holds_the_package(self) -> None:
        folder = compile_router.cached()
        assert folder == compile_router.cached()
        assert len(self.built) == 1
        assert all((folder / file).exists() for file in files())

    def test_other_settings_make_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = compile_router.cached()
        monkeypatch.setenv("CC", "clang")
        assert folder != compile_router.cached()

    def test_one_that_fails_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(folder: Path) -> None:
            raise SystemExit("no")

        monkeypatch.setattr(compile_router, "compile_into", fails)
        with pytest.raises(SystemExit):
            compile_router.cached()
        assert [path.name for path in self.cache.iterdir()] == ["lock"]

    def test_old_ones_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compile_router, "KEPT_BUILDS", 2)
        folders = []
        for number in range(4):
            monkeypatch.setenv("CC", f"cc{number}")
            folders.append(compile_router.cached())
            os.utime(folders[-1], (number, number))
        assert sorted(self.cache.glob("*/")) == sorted(folders[-2:])


def test_without_a_c_compiler_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SystemExit, match=r"no C compiler no-such-compiler: apt-get install gcc"):
        compile_into(ROUTER)


def test_only_the_same_sources_are_compiled_for(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="install that there first"):
        compile_into(tmp_path)
