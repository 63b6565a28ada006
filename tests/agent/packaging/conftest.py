"""The packages, built once for all tests."""

import shutil
import subprocess

import pytest

from fakes.packages import build


@pytest.fixture(scope="session")
def deb(tmp_path_factory):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here: not a child of Debian")
    return build("deb", tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="session")
def pyz(tmp_path_factory):
    return build("pyz", tmp_path_factory.mktemp("pyz"))


@pytest.fixture(scope="session")
def unpacked(deb, tmp_path_factory):
    """The package's files in an empty folder."""
    folder = tmp_path_factory.mktemp("root")
    subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
    return folder
