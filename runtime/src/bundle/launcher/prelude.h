/* Launches kernels that flashtile compiled ahead of time, through the CUDA driver alone. See docs/bundle.md of flashtile.
 *
 * A tensor is the address of its first element in device memory, its extents and its strides in elements, outermost dimension
 * first. The last dimension is contiguous. A CUDA context is current when a function is called. Every function is safe to call
 * from several threads.
 */
#ifndef FLASHTILE_BUNDLE_H
#define FLASHTILE_BUNDLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most dimensions of a tensor. */
#define FLASHTILE_RANK 8

/* A stream of the driver: CUstream. */
struct CUstream_st;

typedef struct flashtile_tensor {
    uint64_t address;                 /* CUdeviceptr of the first element */
    int64_t extents[FLASHTILE_RANK];  /* of the dimensions that the kernel text declares */
    int64_t strides[FLASHTILE_RANK];  /* in elements */
} flashtile_tensor;

/* Device memory that a launch may use until its work has ended: NAME_workspace says how many bytes. */
typedef struct flashtile_workspace {
    uint64_t address; /* a multiple of 256 */
    uint64_t bytes;
} flashtile_workspace;

typedef enum flashtile_status {
    FLASHTILE_OK = 0,
    FLASHTILE_EXTENT = 1,       /* extents that do not fit each other or the kernel */
    FLASHTILE_STRIDE = 2,       /* the last dimension is not contiguous, or a stride is negative */
    FLASHTILE_ADDRESS = 3,      /* an address is no multiple of the element's size, or null */
    FLASHTILE_OVERLAP = 4,      /* an output shares memory with another tensor, or with itself */
    FLASHTILE_INDEX = 5,        /* an index, a divisor or an integer leaves its range for these sizes and scalars */
    FLASHTILE_NO_VARIANT = 6,   /* no code for such arguments: the text has the facts that they lack */
    FLASHTILE_TOO_LARGE = 7,    /* more blocks or workspace than a launch can have */
    FLASHTILE_WORKSPACE = 8,    /* the workspace is too small or misaligned */
    FLASHTILE_NO_DRIVER = 9,    /* libcuda.so.1 is missing, or too old */
    FLASHTILE_ARCHITECTURE = 10,/* no code for the GPU of the current context */
    FLASHTILE_DRIVER = 11       /* a call of the driver failed */
} flashtile_status;

/* What went wrong: names the argument or the driver call. */
typedef struct flashtile_error {
    flashtile_status status;
    char text[320];
} flashtile_error;

