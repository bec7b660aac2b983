import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from fuprune.kernels import build

SOURCE = """
extern "C" __attribute__((visibility("default"))) int fuprune_answer() { return 42; }
"""

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="no C++ compiler"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FUPRUNE_CACHE_DIR", str(tmp_path / "cache"))
    for function in (build.load, build.find_onednn):
        function.cache_clear()
    yield
    for function in (build.load, build.find_onednn):
        function.cache_clear()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "sources" / "answer.cc"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


def onednn_or_skip():
    try:
        return build.find_onednn()
    except build.BuildError as error:
        pytest.skip(str(error))


def built():
    return sorted(p.name for p in build.cache_dir().glob("*.so"))


@needs_compiler
def test_second_load_compiles_nothing(source, monkeypatch):
    onednn_or_skip()
    assert build.load(source.parent).fuprune_answer() == 42
    before = built()
    build.load.cache_clear()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build.load(source.parent).fuprune_answer() == 42
    assert built() == before
    assert len(before) == 1


@needs_compiler
def test_changed_source_is_built_anew(source):
    onednn_or_skip()
    build.load(source.parent)
    build.load.cache_clear()
    source.write_text(SOURCE.replace("42", "43"))
    assert build.load(source.parent).fuprune_answer() == 43
    assert len(built()) == 2


@needs_compiler
def test_processes_that_race_build_once(source, tmp_path):
    onednn_or_skip()
    log = tmp_path / "compilations"
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho one >> {log}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    program = (
        "import pathlib, sys; from fuprune.kernels import build;"
        "print(build.load(pathlib.Path(sys.argv[1])).fuprune_answer())"
    )
    environment = os.environ | {
        "CXX": str(compiler),
        "PYTHONPATH": str(pathlib.Path(build.__file__).parents[2]),
    }

    def run(_):
        return subprocess.run(
            [sys.executable, "-c", program, str(source.parent)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert list(pool.map(run, range(3))) == ["42\n"] * 3
    assert log.read_text() == "one\n" * 2  # its only source, and the linking


@needs_compiler
def test_compiler_that_fails_is_told_and_leaves_nothing(source):
    onednn_or_skip()
    source.write_text("this is not C++\n")
    with pytest.raises(build.BuildError, match="failed: .*answer.cc.*error"):
        build.load(source.parent)
    assert built() == []


def test_missing_library_names_the_places_and_the_way_out(monkeypatch, tmp_path):
    monkeypatch.setenv("DNNLROOT", str(tmp_path / "nowhere"))
    monkeypatch.setattr(build, "_wheel_roots", list)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    with pytest.raises(build.BuildError, match=r"nowhere.*prefix.*install onednn"):
        build.find_onednn()


@needs_compiler
def test_folder_that_cannot_be_made_is_told(source, tmp_path, monkeypatch):
    onednn_or_skip()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUPRUNE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(build.BuildError, match="FUPRUNE_CACHE_DIR"):
        build.load(source.parent)
