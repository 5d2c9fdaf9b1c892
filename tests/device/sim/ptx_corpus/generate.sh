#!/bin/sh
# Regenerates the PTX beside each .cu with nvcc 13. The tests need only the committed .ptx files.
set -e
cd "$(dirname "$0")"
for source in *.cu; do
    for sm in 75 90; do
        "${NVCC:-/usr/local/cuda/bin/nvcc}" -ptx -arch=compute_$sm -o "${source%.cu}_sm$sm.ptx" "$source"
    done
done
