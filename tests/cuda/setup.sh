#!/usr/bin/env bash
# Makes a virtual environment with torch's CUDA build and the project, and the simulated runtime:
#   bash tests/cuda/setup.sh [VENV]        in the repository's root; some minutes, 6 GB of disk
# PYTHON chooses the interpreter, TORCH the torch; it needs g++ and CUDA's headers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$HOME/.cuda-simulated}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install -q "${TORCH:-torch==2.11.0}"
"$venv/bin/pip" install -q -e '.[dev]'
headers=$("$venv/bin/python" -c 'import nvidia.cu13 as n; print(list(n.__path__)[0] + "/include")')
mkdir -p "$venv/simulated/lib"
g++ -std=c++17 -O1 -fPIC -shared -I/usr/local/cuda/include -I"$headers" "$here/cudart.cpp" \
    -o "$venv/simulated/libcudart_simulated.so" -lpthread
gcc -shared -fPIC "$here/driver.c" -o "$venv/simulated/lib/libcuda.so.1"
echo "ready: bash tests/cuda/run SCRIPT …"
