"""The packages that scripts/setup --runtime-of-demo leaves out, hidden from CMake: a new user's machine and the image lack them."""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# By Debian package: the name that find_package() knows; None where a build without the package is the same.
CMAKE_NAMES = {
    "libbenchmark-dev": "benchmark",
    "libclang-rt-dev": None,
    "libeigen3-dev": "Eigen3",
    "libgmock-dev": None,  # with GTest
    "libgtest-dev": "GTest",
    "libnghttp2-dev": None,  # of one test
    "libsentencepiece-dev": None,  # pkg-config; models that need it are refused without
}


def listed(option):
    done = subprocess.run([str(ROOT / "scripts" / "setup"), "--list", option], stdout=subprocess.PIPE, text=True, check=True)
    return set(done.stdout.split())


def left_out():
    return listed("--tests") - listed("--runtime-of-demo")


def hidden():
    """CMake's options."""
    libraries = sorted(name for name in left_out() if name.startswith("lib"))
    return [f"-DCMAKE_DISABLE_FIND_PACKAGE_{CMAKE_NAMES[name]}=ON" for name in libraries if CMAKE_NAMES[name]]
