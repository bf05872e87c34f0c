/* The launcher: checks a call, chooses a variant, and queues its launches. What kernels need of it is in the tables at the end
 * of this file. Each part is the C form of a part of flashtile's runtime, which is named above it. */
#include "flashtile_bundle.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 ft_int;

/* ---- limits: a kernel beyond them is refused when the bundle is made ---- */

#define FT_TERMS 6
#define FT_SIZES 40
#define FT_VALUES 64
#define FT_NODES 256
#define FT_LEAVES 8
#define FT_STEPS 8
#define FT_MAPS 12
#define FT_BLOCK 4096
#define FT_MAX_SIZE (((int64_t)1 << 31) - ((int64_t)1 << 16))
#define FT_BISECTIONS (1 << 16)

/* ---- tables ---- */

/* (sum of coefficient * size + constant) / divisor; exact unless it is rounded down. */
typedef struct {
    int count;
    int size[FT_TERMS];
    int64_t coefficient[FT_TERMS];
    int64_t constant, divisor;
    int rounded;
} ft_expr;

typedef enum { FT_TENSOR, FT_F32, FT_I32 } ft_kind;

typedef struct {
    const char *name;
    ft_kind kind;
    int rank, bytes, type; /* of elements; type: CUtensorMapDataType */
    int output, wide;      /* wide: its alignment is a fact */
    const ft_expr *shape;
} ft_param;

typedef struct {
    int size, param, dimension;
    int64_t coefficient, constant, divisor;
} ft_source;
typedef struct {
    int param, dimension;
    int64_t least;
} ft_range;

typedef enum {
    FT_CONSTANT,
    FT_SIZE,
    FT_SCALAR,
    FT_BELOW,
    FT_NEGATED,
    FT_ABSOLUTE,
    FT_ADD,
    FT_SUB,
    FT_MUL,
    FT_MIN,
    FT_MAX,
    FT_DIV,
    FT_REM,
    FT_BIT_AND,
    FT_BIT_OR,
    FT_BIT_XOR,
    FT_SHL,
    FT_SHR,
    FT_MUL_HI,
    FT_EITHER,
    FT_WIDENED,
    FT_UNKNOWN
} ft_op;

typedef struct {
    ft_op op;
    int a, b;
    int64_t value;
    ft_expr extent;
    const char *text;
} ft_node;
typedef struct {
    int param, dimension;
    ft_expr extent;
    int node;
    ft_expr start, length;
} ft_access;
typedef struct {
    ft_expr expr;
    const char *text;
} ft_checked;
typedef struct {
    ft_expr expr;
    int each;
} ft_extent;

typedef struct {
    ft_expr heads, groups, rows;
    int count;
    const int (*tensors)[2]; /* parameter, dimension of heads */
} ft_fold;

typedef struct {
    const char *name;
    int bytes, type, rank;
    const ft_expr *shape;
} ft_scratch;
typedef enum { FT_POINTER, FT_STRIDE, FT_SIZE_FIELD, FT_SCALAR_FIELD, FT_WORKSPACE } ft_field_kind;
typedef struct {
    ft_field_kind kind;
    int offset, a, b;
} ft_field;
typedef struct {
    ft_expr expr;
    int64_t block;
} ft_grid;
typedef struct {
    int param, rank;
    int order[5];
    uint32_t tile[5];
    int row_bytes;
} ft_map;

typedef struct {
    const char *entry;
    int threads, shared, cluster, early, per_sm; /* per_sm: 0 for a block per program */
    int block_bytes;
    uint64_t workspace, workspace_each;
    int grids, fields, maps;
    const ft_grid *grid;
    const ft_field *field;
    const ft_map *map;
} ft_step;

typedef struct {
    const unsigned long long *cubin;
    int steps, scratches;
    const ft_step *step;
    const ft_scratch *scratch;
    int folded;
} ft_code;

typedef struct {
    uint32_t positive; /* bit n: the n-th f32 scalar is positive and finite */
    const int *alignment; /* of each parameter: bytes that its address and strides are multiples of */
    int foldable, wide;
    int rank;           /* among the variants: 0 for the one with the most facts */
    const int *places;  /* of each run-time size, in eighths of an octave */
    int code;
} ft_variant;

typedef struct {
    const char *name;
    int major, minor, specific;
    int variants;
    const ft_variant *variant;
    const ft_code *code;
} ft_arch;

typedef struct {
    const char *name;
    int params, sizes, sources, ranges, runtime_sizes;
    const ft_param *param;
    const int64_t *consts; /* sizes that are known; 0 for others */
    const ft_source *source;
    const ft_range *range;
    const int *runtime_size;
    int nodes, divisors, indices, exacts, accesses, comparisons, checked_sizes, grids;
    const ft_node *node;
    const int *divisor, *index, *exact;
    const ft_access *access;
    const int (*comparison)[2];
    const ft_checked *checked;
    const ft_extent *grid;
    const ft_fold *fold; /* rows that may be folded, or null */
    int archs;
    const ft_arch *arch;
} ft_kernel;

/* An argument, as a kernel's function passes it. */
typedef struct {
    const flashtile_tensor *tensor;
    float f32;
    int32_t i32;
} ft_argument;

/* An argument or a scratch tensor, as launches see it. */
typedef struct {
    uint64_t address;
    int rank, bytes, type;
    int64_t extents[FLASHTILE_RANK], strides[FLASHTILE_RANK];
    float f32;
    int32_t i32;
} ft_value;

typedef struct {
    const ft_kernel *kernel;
    const ft_argument *argument;
    int64_t sizes[FT_SIZES];
    flashtile_error *error;
} ft_call;

static flashtile_status ft_fail(flashtile_error *error, flashtile_status status, const char *format, ...) {
    if (error) {
        va_list list;
        error->status = status;
        va_start(list, format);
        vsnprintf(error->text, sizeof error->text, format, list);
        va_end(list);
    }
    return status;
}

