#include "tests/build/cuda_header_use.inc"
