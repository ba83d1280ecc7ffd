#!/usr/bin/env bash
# Makes a virtual environment with torch's CUDA build and the project, and the simulated runtime:
#   bash tests/cuda/setup.sh [VENV]        in the repository's root; some minutes, 6 GB of disk
# PYTHON chooses the interpreter, TORCH the torch. CUDA's headers come as packages, too.
set -euo pipefail
command -v g++ >/dev/null || { echo "error: the simulated runtime needs g++" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$PWD/.venv-cuda}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install -q "${TORCH:-torch==2.11.0}"
"$venv/bin/pip" install -q -e '.[dev]'
# torch brings the runtime's own headers; those that they include come from the same CUDA
cuda=$("$venv/bin/python" -c 'from importlib.metadata import version
print(".".join(version("nvidia-cuda-runtime").split(".")[:2]))')
"$venv/bin/pip" install -q "nvidia-cuda-crt==$cuda.*" "nvidia-cuda-cccl==$cuda.*"
headers=$("$venv/bin/python" -c 'import nvidia.cu13 as n; print(list(n.__path__)[0] + "/include")')
mkdir -p "$venv/simulated/lib"
g++ -x c -shared -fPIC "$here/driver.c" -o "$venv/simulated/lib/libcuda.so.1"
g++ -std=c++17 -O1 -fPIC -shared -I"$headers" "$here/cudart.cpp" \
    -o "$venv/simulated/libcudart_simulated.so" -lpthread
echo "ready: CUDA_VENV=$venv bash tests/cuda/run SCRIPT …"
