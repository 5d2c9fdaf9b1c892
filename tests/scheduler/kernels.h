/* kernels.ptx as a C string; kernels.cu describes the kernels. */
#ifndef MUSTER_TESTS_SCHEDULER_KERNELS_H
#define MUSTER_TESTS_SCHEDULER_KERNELS_H

extern const char test_kernels_ptx[];

#endif
