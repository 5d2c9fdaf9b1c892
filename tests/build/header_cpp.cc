#include "tests/build/header_use.inc"
