/* The launcher: checks a call, chooses a variant, and queues its launches. What kernels need of it is in the tables at the end of
 * this file. Each part is the C form of a part of flashtile's runtime, which is named above it. */
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
#define FT_MAPS 8
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
    int rank, bytes, type;     /* of elements; type: CUtensorMapDataType */
    int output, wide;          /* wide: its alignment is a fact */
    const ft_expr *shape;
} ft_param;

typedef struct { int size, param, dimension; int64_t coefficient, constant, divisor; } ft_source;
typedef struct { int param, dimension; int64_t least; } ft_range;

typedef enum {
    FT_CONSTANT, FT_SIZE, FT_SCALAR, FT_BELOW, FT_NEGATED, FT_ABSOLUTE, FT_ADD, FT_SUB, FT_MUL, FT_MIN, FT_MAX, FT_DIV, FT_REM,
    FT_EITHER, FT_WIDENED, FT_UNKNOWN
} ft_op;

typedef struct { ft_op op; int a, b; int64_t value; ft_expr extent; const char *text; } ft_node;
typedef struct { int param, dimension; ft_expr extent; int node; ft_expr start, length; } ft_access;
typedef struct { ft_expr expr; const char *text; } ft_checked;
typedef struct { ft_expr expr; int each; } ft_extent;

typedef struct {
    ft_expr heads, groups, rows;
    int count;
    const int (*tensors)[2];   /* parameter, dimension of heads */
} ft_fold;

typedef struct { const char *name; int bytes, type, rank; const ft_expr *shape; } ft_scratch;
typedef enum { FT_POINTER, FT_STRIDE, FT_SIZE_FIELD, FT_SCALAR_FIELD, FT_WORKSPACE } ft_field_kind;
typedef struct { ft_field_kind kind; int offset, a, b; } ft_field;
typedef struct { ft_expr expr; int64_t block; } ft_grid;
typedef struct { int param, rank; int order[5]; uint32_t tile[5]; int swizzle; } ft_map;

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
    uint32_t positive;         /* bit n: the n-th f32 scalar is positive and finite */
    int alignment, foldable, wide;
    int rank;                  /* among the variants: 0 for the one with the most facts */
    const int *buckets;        /* of each run-time size */
    int code;
} ft_variant;

typedef struct { const char *name; int major, minor, specific; int variants; const ft_variant *variant; const ft_code *code; } ft_arch;

typedef struct {
    const char *name;
    int params, sizes, sources, ranges, runtime_sizes;
    const ft_param *param;
    const int64_t *consts;     /* sizes that are known; 0 for others */
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
    const ft_fold *fold;       /* rows that may be folded, or null */
    int archs;
    const ft_arch *arch;
} ft_kernel;

/* An argument, as a kernel's function passes it. */
typedef struct { const flashtile_tensor *tensor; float f32; int32_t i32; } ft_argument;

/* An argument or a scratch tensor, as launches see it. */
typedef struct { uint64_t address; int rank, bytes, type; int64_t extents[FLASHTILE_RANK], strides[FLASHTILE_RANK]; float f32; int32_t i32; } ft_value;

typedef struct { const ft_kernel *kernel; const ft_argument *argument; int64_t sizes[FT_SIZES]; flashtile_error *error; } ft_call;

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

/* ---- size expressions (ir/size.rs, device/compiled/term.rs) ---- */

static ft_int ft_sum(const ft_expr *expr, const int64_t *sizes) {
    ft_int sum = expr->constant;
    for (int n = 0; n < expr->count; n++) sum += (ft_int)sizes[expr->size[n]] * expr->coefficient[n];
    return sum;
}

static ft_int ft_floor_div(ft_int a, ft_int b) {
    if (b == -1) return -a;
    ft_int quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

/* The value, if it is a whole number. */
static int ft_exact(const ft_expr *expr, const int64_t *sizes, int64_t *value) {
    ft_int sum = ft_sum(expr, sizes);
    if (!expr->rounded && sum % expr->divisor != 0) return 0;
    sum = ft_floor_div(sum, expr->divisor);
    if (sum > INT64_MAX || sum < INT64_MIN) return 0;
    *value = (int64_t)sum;
    return 1;
}

/* The value rounded down, 0 if it is negative; -1 if it is too large. */
static int64_t ft_term(const ft_expr *expr, const int64_t *sizes) {
    ft_int value = ft_floor_div(ft_sum(expr, sizes), expr->divisor);
    return value > INT64_MAX ? -1 : value < 0 ? 0 : (int64_t)value;
}

/* ---- arguments and sizes (launch/signature.rs) ---- */

static flashtile_status ft_check_tensor(const ft_call *call, int n) {
    const ft_param *param = &call->kernel->param[n];
    const flashtile_tensor *tensor = call->argument[n].tensor;
    ft_int last = 0, elements = 1;
    for (int d = 0; d < param->rank; d++) {
        if (tensor->extents[d] < 0)
            return ft_fail(call->error, FLASHTILE_EXTENT, "dimension %d of `%s` has the extent %lld", d, param->name, (long long)tensor->extents[d]);
        if (tensor->strides[d] < 0)
            return ft_fail(call->error, FLASHTILE_STRIDE, "dimension %d of `%s` has the stride %lld", d, param->name, (long long)tensor->strides[d]);
        elements *= tensor->extents[d];
        if (elements > UINT64_MAX) break;
        if (tensor->extents[d] > 0) last += (ft_int)(tensor->extents[d] - 1) * tensor->strides[d];
    }
    if (elements > INT64_MAX || (elements && last >= INT64_MAX / param->bytes))
        return ft_fail(call->error, FLASHTILE_EXTENT, "`%s` reaches beyond all memory", param->name);
    if (elements && tensor->address == 0) return ft_fail(call->error, FLASHTILE_ADDRESS, "`%s` is null", param->name);
    int inner = param->rank - 1;
    if (param->rank > 0 && tensor->extents[inner] > 1 && tensor->strides[inner] != 1)
        return ft_fail(call->error, FLASHTILE_STRIDE, "the last dimension of `%s` must be contiguous, but has the stride %lld", param->name, (long long)tensor->strides[inner]);
    if (tensor->address % (uint64_t)param->bytes != 0)
        return ft_fail(call->error, FLASHTILE_ADDRESS, "the address of `%s` must be a multiple of %d", param->name, param->bytes);
    return FLASHTILE_OK;
}

static flashtile_status ft_solve(ft_call *call) {
    const ft_kernel *kernel = call->kernel;
    memcpy(call->sizes, kernel->consts, (size_t)kernel->sizes * sizeof *call->sizes);
    for (int n = 0; n < kernel->sources; n++) {
        const ft_source *source = &kernel->source[n];
        const char *name = kernel->param[source->param].name;
        int64_t extent = call->argument[source->param].tensor->extents[source->dimension];
        if (extent > FT_MAX_SIZE) return ft_fail(call->error, FLASHTILE_EXTENT, "dimension %d of `%s` is larger than 2^31 - 2^16", source->dimension, name);
        int64_t scaled = extent * source->divisor - source->constant;
        if (scaled % source->coefficient != 0) return ft_fail(call->error, FLASHTILE_EXTENT, "dimension %d of `%s` is no extent that the kernel can have", source->dimension, name);
        call->sizes[source->size] = scaled / source->coefficient;
    }
    for (int n = 0; n < kernel->ranges; n++) {
        const ft_range *range = &kernel->range[n];
        if (call->argument[range->param].tensor->extents[range->dimension] < range->least)
            return ft_fail(call->error, FLASHTILE_EXTENT, "dimension %d of `%s` must be at least %lld", range->dimension, kernel->param[range->param].name, (long long)range->least);
    }
    for (int n = 0; n < kernel->params; n++) {
        const ft_param *param = &kernel->param[n];
        for (int d = 0; param->kind == FT_TENSOR && d < param->rank; d++) {
            int64_t expected, found = call->argument[n].tensor->extents[d];
            if (!ft_exact(&param->shape[d], call->sizes, &expected) || expected != found)
                return ft_fail(call->error, FLASHTILE_EXTENT, "dimension %d of `%s` is %lld, which does not fit the other tensors", d, param->name, (long long)found);
        }
    }
    return FLASHTILE_OK;
}

/* ---- intervals (dsl/src/analysis/reach/interval.rs) ---- */

typedef enum { FT_EMPTY, FT_NOT_KNOWN, FT_BETWEEN } ft_state;
typedef struct { ft_state state; ft_int lo, hi; } ft_interval;
typedef struct { ft_interval range; ft_int magnitude, divisors; } ft_known;

#define FT_INT_MAX ((ft_int)(((unsigned __int128)1 << 127) - 1))
#define FT_INT_MIN (-FT_INT_MAX - 1)

static ft_int ft_plus(ft_int a, ft_int b) { ft_int x; return __builtin_add_overflow(a, b, &x) ? (b < 0 ? FT_INT_MIN : FT_INT_MAX) : x; }
static ft_int ft_minus(ft_int a, ft_int b) { ft_int x; return __builtin_sub_overflow(a, b, &x) ? (b > 0 ? FT_INT_MIN : FT_INT_MAX) : x; }
static ft_int ft_times(ft_int a, ft_int b) { ft_int x; return __builtin_mul_overflow(a, b, &x) ? ((a < 0) != (b < 0) ? FT_INT_MIN : FT_INT_MAX) : x; }
static ft_int ft_abs(ft_int a) { return a == FT_INT_MIN ? FT_INT_MAX : a < 0 ? -a : a; }
static ft_int ft_least(ft_int a, ft_int b) { return a < b ? a : b; }
static ft_int ft_most(ft_int a, ft_int b) { return a > b ? a : b; }
static ft_int ft_first(ft_int a, ft_int b) { (void)b; return a; }

static ft_interval ft_between(ft_int lo, ft_int hi) {
    ft_interval interval = {lo <= hi ? FT_BETWEEN : FT_EMPTY, lo, hi};
    return interval;
}

static ft_interval ft_nothing(ft_state state) {
    ft_interval interval = {state, 0, 0};
    return interval;
}

static ft_int ft_magnitude(ft_interval x) { return x.state == FT_BETWEEN ? ft_most(ft_abs(x.lo), ft_abs(x.hi)) : 0; }
static int ft_within(ft_interval x, ft_int least, ft_int most) { return x.state == FT_BETWEEN && least <= x.lo && x.hi <= most; }

static ft_interval ft_of_ends(ft_interval x, ft_interval y, ft_int (*f)(ft_int, ft_int)) {
    if (x.state == FT_EMPTY || y.state == FT_EMPTY) return ft_nothing(FT_EMPTY);
    if (x.state == FT_NOT_KNOWN || y.state == FT_NOT_KNOWN) return ft_nothing(FT_NOT_KNOWN);
    ft_int all[4] = {f(x.lo, y.lo), f(x.lo, y.hi), f(x.hi, y.lo), f(x.hi, y.hi)}, lo = all[0], hi = all[0];
    for (int n = 1; n < 4; n++) lo = ft_least(lo, all[n]), hi = ft_most(hi, all[n]);
    return ft_between(lo, hi);
}

static ft_interval ft_hull(ft_interval x, ft_interval y) {
    if (x.state == FT_EMPTY) return y;
    if (y.state == FT_EMPTY) return x;
    if (x.state == FT_NOT_KNOWN || y.state == FT_NOT_KNOWN) return ft_nothing(FT_NOT_KNOWN);
    return ft_between(ft_least(x.lo, y.lo), ft_most(x.hi, y.hi));
}

static ft_interval ft_remainder(ft_interval x, ft_interval y) {
    if (x.state != FT_BETWEEN || y.state != FT_BETWEEN) return ft_of_ends(x, y, ft_first);
    if (y.lo == y.hi && ft_floor_div(x.lo, y.lo) == ft_floor_div(x.hi, y.lo)) {
        ft_int whole = ft_floor_div(x.lo, y.lo) * y.lo;
        return ft_between(x.lo - whole, x.hi - whole);
    }
    if (y.lo > 0) return ft_between(x.lo >= 0 && x.hi < y.lo ? x.lo : 0, x.lo >= 0 ? ft_least(x.hi, y.hi - 1) : y.hi - 1);
    return ft_between(y.lo + 1, 0);
}

/* A quotient or remainder, for the negative and the positive divisors. */
static ft_interval ft_by_signs(ft_interval x, ft_interval y, int remainder) {
    ft_interval negative = y, positive = y;
    if (y.state == FT_BETWEEN) {
        negative = ft_between(y.lo, ft_least(y.hi, -1));
        positive = ft_between(ft_most(y.lo, 1), y.hi);
    }
    if (remainder) return ft_hull(ft_remainder(x, negative), ft_remainder(x, positive));
    return ft_hull(ft_of_ends(x, negative, ft_floor_div), ft_of_ends(x, positive, ft_floor_div));
}

static ft_interval ft_absolute(ft_interval x) {
    if (x.state != FT_BETWEEN) return x;
    return ft_between(x.lo < 0 && x.hi > 0 ? 0 : ft_least(ft_abs(x.lo), ft_abs(x.hi)), ft_magnitude(x));
}

/* ---- what integer arithmetic reaches (dsl/src/analysis/reach.rs, reach/node.rs) ---- */

static ft_interval ft_leaf(const ft_call *call, const ft_node *node) {
    int64_t extent;
    switch (node->op) {
    case FT_CONSTANT: return ft_between(node->value, node->value);
    case FT_SIZE: return ft_between(call->sizes[node->a], call->sizes[node->a]);
    case FT_SCALAR: return ft_between(call->argument[node->a].i32, call->argument[node->a].i32);
    case FT_BELOW: return ft_between(0, (ft_int)(ft_exact(&node->extent, call->sizes, &extent) ? extent : 0) - 1);
    default: return ft_nothing(FT_NOT_KNOWN);
    }
}

static ft_known ft_binary(const ft_node *node, const ft_known *a, const ft_known *b) {
    ft_known known = {ft_nothing(FT_NOT_KNOWN), ft_plus(a->magnitude, b->magnitude), ft_times(a->divisors, b->divisors)};
    ft_int by = ft_most(ft_magnitude(b->range), 1);
    switch (node->op) {
    case FT_ADD: known.range = ft_of_ends(a->range, b->range, ft_plus); break;
    case FT_SUB: known.range = ft_of_ends(a->range, b->range, ft_minus); break;
    case FT_MIN: known.range = ft_of_ends(a->range, b->range, ft_least); break;
    case FT_MAX: known.range = ft_of_ends(a->range, b->range, ft_most); break;
    case FT_MUL:
        known.range = ft_of_ends(a->range, b->range, ft_times);
        known.magnitude = ft_times(a->magnitude, b->magnitude);
        break;
    case FT_DIV:
        known.range = ft_by_signs(a->range, b->range, 0);
        known.magnitude = ft_magnitude(known.range);
        known.divisors = ft_times(known.divisors, by);
        break;
    case FT_REM:
        known.range = ft_by_signs(a->range, b->range, 1);
        known.magnitude = ft_plus(a->magnitude, ft_magnitude(b->range));
        known.divisors = ft_times(known.divisors, by);
        break;
    default: /* FT_EITHER */
        known.range = ft_hull(a->range, b->range);
        known.magnitude = ft_most(a->magnitude, b->magnitude);
    }
    return known;
}

/* A node from those before it; `range` in place of a leaf's own, unless it is null. */
static ft_known ft_evaluate(const ft_call *call, const ft_node *node, const ft_known *all, const ft_interval *range) {
    ft_known known = {ft_nothing(FT_NOT_KNOWN), 0, 1};
    switch (node->op) {
    case FT_NEGATED:
        known = all[node->a];
        known.range = ft_of_ends(ft_between(0, 0), known.range, ft_minus);
        return known;
    case FT_ABSOLUTE:
        known = all[node->a];
        known.range = ft_absolute(known.range);
        return known;
    case FT_WIDENED: /* beyond 32 bits it wraps, and is not known */
        return all[node->a].range.state == FT_EMPTY || ft_within(all[node->a].range, INT32_MIN, INT32_MAX) ? all[node->a] : known;
    case FT_CONSTANT: case FT_SIZE: case FT_SCALAR: case FT_BELOW: case FT_UNKNOWN:
        known.range = range ? *range : ft_leaf(call, node);
        known.magnitude = ft_magnitude(known.range);
        return known;
    default: return ft_binary(node, &all[node->a], &all[node->b]);
    }
}

/* A question about a value: is it never 0, or never outside of these limits? */
typedef struct { int not_zero; ft_int least, most; } ft_question;

static int ft_proves(const ft_question *ask, ft_interval x) {
    if (ask->not_zero) return !(x.state == FT_BETWEEN && x.lo <= 0 && 0 <= x.hi);
    return ft_within(x, ask->least, ask->most);
}

static int ft_fails(const ft_question *ask, ft_int x) { return ask->not_zero ? x == 0 : x < ask->least || x > ask->most; }

typedef struct { int root, count, leaves; int below[FT_NODES]; int leaf[FT_LEAVES]; } ft_tree;

static void ft_below(const ft_kernel *kernel, int root, ft_tree *tree) {
    char wanted[FT_NODES] = {0};
    tree->root = root, tree->count = tree->leaves = 0;
    wanted[root] = 1;
    for (int n = root; n >= 0; n--) {
        ft_op op = kernel->node[n].op;
        if (!wanted[n] || op <= FT_BELOW || op == FT_UNKNOWN) continue;
        wanted[kernel->node[n].a] = 1;
        if (op != FT_NEGATED && op != FT_ABSOLUTE && op != FT_WIDENED) wanted[kernel->node[n].b] = 1;
    }
    for (int n = 0; n <= root; n++) {
        if (!wanted[n]) continue;
        tree->below[tree->count++] = n;
        if (kernel->node[n].op == FT_BELOW && tree->leaves < FT_LEAVES) tree->leaf[tree->leaves++] = n;
    }
}

static ft_interval ft_at(const ft_call *call, const ft_tree *tree, ft_known *scratch, const ft_interval *ranges) {
    for (int k = 0; k < tree->count; k++) {
        int n = tree->below[k];
        const ft_interval *range = NULL;
        for (int l = 0; l < tree->leaves; l++)
            if (tree->leaf[l] == n) range = &ranges[l];
        scratch[n] = ft_evaluate(call, &call->kernel->node[n], scratch, range);
    }
    return scratch[tree->root].range;
}

/* 1 if the value is as asked, 0 if it fails at a point, -1 if bisection gives up. */
static int ft_bisect(const ft_call *call, const ft_known *known, int node, const ft_question *ask) {
    enum { OPEN = 32 * FT_LEAVES + 2 };
    ft_tree tree;
    ft_known scratch[FT_NODES];
    ft_interval open[OPEN][FT_LEAVES];
    int count = 1;
    ft_below(call->kernel, node, &tree);
    memcpy(scratch, known, (size_t)call->kernel->nodes * sizeof *scratch);
    for (int l = 0; l < tree.leaves; l++) open[0][l] = known[tree.leaf[l]].range;
    for (int step = 0; step < FT_BISECTIONS; step++) {
        ft_interval ranges[FT_LEAVES] = {{FT_EMPTY, 0, 0}}, corner[FT_LEAVES];
        int widest = -1;
        if (count == 0) return 1;
        memcpy(ranges, open[--count], sizeof ranges);
        if (ft_proves(ask, ft_at(call, &tree, scratch, ranges))) continue;
        for (int end = 0; end < 2; end++) {
            for (int l = 0; l < tree.leaves; l++) {
                corner[l] = ranges[l];
                if (end) corner[l].lo = corner[l].hi; else corner[l].hi = corner[l].lo;
            }
            ft_interval at = ft_at(call, &tree, scratch, corner);
            if (at.state == FT_BETWEEN && ft_fails(ask, at.lo)) return 0;
        }
        for (int l = 0; l < tree.leaves; l++)
            if (ranges[l].state == FT_BETWEEN && ranges[l].hi > ranges[l].lo &&
                (widest < 0 || ranges[l].hi - ranges[l].lo >= ranges[widest].hi - ranges[widest].lo)) widest = l;
        if (widest < 0) continue;
        if (count + 2 > OPEN) return -1;
        ft_int middle = ranges[widest].lo + (ranges[widest].hi - ranges[widest].lo) / 2;
        memcpy(open[count], ranges, sizeof ranges);
        open[count++][widest] = ft_between(ranges[widest].lo, middle);
        memcpy(open[count], ranges, sizeof ranges);
        open[count++][widest] = ft_between(middle + 1, ranges[widest].hi);
    }
    return -1;
}

static flashtile_status ft_decide(const ft_call *call, const ft_known *known, int node, ft_question ask, const char *must) {
    ft_interval value = known[node].range;
    if (value.state != FT_BETWEEN || ft_proves(&ask, value)) return FLASHTILE_OK;
    int decided = ft_bisect(call, known, node, &ask);
    if (decided > 0) return FLASHTILE_OK;
    return ft_fail(call->error, FLASHTILE_INDEX, "`%s` must be %s for these sizes and scalars%s", call->kernel->node[node].text, must, decided < 0 ? ", which was not decided" : "");
}

static flashtile_status ft_check_access(const ft_call *call, const ft_known *known, const ft_access *access) {
    int64_t extent, start, length;
    const char *name = call->kernel->param[access->param].name;
    if (!ft_exact(&access->extent, call->sizes, &extent)) return FLASHTILE_OK;
    if (access->node < 0) {
        if (!ft_exact(&access->start, call->sizes, &start) || !ft_exact(&access->length, call->sizes, &length)) return FLASHTILE_OK;
        if (start < 0 || start + length > extent)
            return ft_fail(call->error, FLASHTILE_INDEX, "the kernel addresses %lld .. %lld of dimension %d of `%s`, which is %lld", (long long)start, (long long)(start + length), access->dimension, name, (long long)extent);
        return FLASHTILE_OK;
    }
    ft_question inside = {0, 0, (ft_int)extent - 1};
    char must[160];
    snprintf(must, sizeof must, "an index of dimension %d of `%s`, which is %lld,", access->dimension, name, (long long)extent);
    return ft_decide(call, known, access->node, inside, must);
}

static flashtile_status ft_check_values(const ft_call *call, const ft_known *known) {
    const ft_kernel *kernel = call->kernel;
    const ft_question zero = {1, 0, 0}, in64 = {0, INT64_MIN, INT64_MAX}, in32 = {0, INT32_MIN, INT32_MAX};
    flashtile_status status = FLASHTILE_OK;
    for (int n = 0; !status && n < kernel->divisors; n++) status = ft_decide(call, known, kernel->divisor[n], zero, "other than 0");
    for (int n = 0; !status && n < kernel->indices; n++) status = ft_decide(call, known, kernel->index[n], in64, "within 64 bits");
    for (int n = 0; !status && n < kernel->exacts; n++) status = ft_decide(call, known, kernel->exact[n], in32, "within 32 bits");
    for (int n = 0; !status && n < kernel->accesses; n++) status = ft_check_access(call, known, &kernel->access[n]);
    return status;
}

/* Whether indices, and what loop bounds are made of, stay within 32 bits. */
static int ft_is_narrow(const ft_kernel *kernel, const ft_known *known) {
    for (int n = 0; n < kernel->indices; n++) {
        ft_interval range = known[kernel->index[n]].range;
        if (range.state == FT_NOT_KNOWN && kernel->node[kernel->index[n]].op != FT_WIDENED) return 0;
        if (range.state == FT_BETWEEN && !ft_within(range, INT32_MIN, INT32_MAX)) return 0;
    }
    for (int n = 0; n < kernel->comparisons; n++) {
        ft_int total = 2, divisors = 1;
        for (int side = 0; side < 2; side++) {
            const ft_known *of = &known[kernel->comparison[n][side]];
            total = ft_plus(total, of->magnitude);
            divisors = ft_times(divisors, ft_most(of->divisors, 1));
        }
        if (ft_plus(ft_times(total, divisors), 1 << 20) >= (ft_int)1 << 31) return 0;
    }
    return 1;
}

static flashtile_status ft_check_reach(const ft_call *call, int *wide) {
    const ft_kernel *kernel = call->kernel;
    ft_known known[FT_NODES];
    ft_int programs = 1;
    *wide = 0;
    for (int n = 0; n < kernel->checked_sizes; n++) {
        const ft_expr *expr = &kernel->checked[n].expr;
        int64_t value;
        ft_int sum = ft_abs(expr->constant);
        for (int k = 0; k < expr->count; k++) sum += ft_abs((ft_int)call->sizes[expr->size[k]] * expr->coefficient[k]);
        if (!ft_exact(expr, call->sizes, &value) || value < 0 || value > FT_MAX_SIZE || sum > FT_MAX_SIZE)
            return ft_fail(call->error, FLASHTILE_EXTENT, "`%s` must be a whole number from 0 to 2^31 - 2^16", kernel->checked[n].text);
    }
    for (int n = 0; n < kernel->grids; n++) {
        int64_t extent = 0;
        if (!ft_exact(&kernel->grid[n].expr, call->sizes, &extent) || extent == 0) return FLASHTILE_OK;
        if (kernel->grid[n].each) programs = ft_times(programs, extent);
    }
    if (programs > FT_MAX_SIZE) return ft_fail(call->error, FLASHTILE_EXTENT, "more programs than a launch can have");
    for (int n = 0; n < kernel->nodes; n++) known[n] = ft_evaluate(call, &kernel->node[n], known, NULL);
    flashtile_status status = ft_check_values(call, known);
    *wide = !ft_is_narrow(kernel, known);
    return status;
}

/* ---- shared memory of tensors (tensor/overlap.rs) ---- */

typedef struct { ft_int stride, least, most; } ft_span;
typedef struct { ft_span span[32]; int count, steps; } ft_distances;

static int ft_add_span(ft_distances *all, ft_int stride, ft_int least, ft_int most) {
    int at = 0;
    if (least == 0 && most == 0) return 1;
    while (at < all->count && all->span[at].stride > stride) at++;
    if (at < all->count && all->span[at].stride == stride) {
        all->span[at].least += least, all->span[at].most += most;
        return 1;
    }
    if (all->count == 32) return 0;
    memmove(&all->span[at + 1], &all->span[at], (size_t)(all->count - at) * sizeof *all->span);
    all->span[at].stride = stride, all->span[at].least = least, all->span[at].most = most;
    all->count++;
    return 1;
}

static int ft_meets(ft_distances *all, int at, ft_int distance, int nothing) {
    if (++all->steps > 1 << 12) return 1;
    if (at == all->count) return distance == 0 && !nothing;
    const ft_span *span = &all->span[at];
    if (span->stride == 0) return distance == 0;
    ft_int low = 0, high = 0;
    for (int n = at + 1; n < all->count; n++) low += all->span[n].stride * all->span[n].least, high += all->span[n].stride * all->span[n].most;
    ft_int first = ft_floor_div(distance - high, span->stride) + ((distance - high) % span->stride != 0);
    ft_int last = ft_floor_div(distance - low, span->stride);
    first = ft_most(first, span->least), last = ft_least(last, span->most);
    for (ft_int factor = first; factor <= last; factor++)
        if (ft_meets(all, at + 1, distance - factor * span->stride, nothing && factor == 0)) return 1;
    return 0;
}

/* One past the last byte, or 0 if there is no element. */
static ft_int ft_end(const ft_param *param, const flashtile_tensor *tensor) {
    ft_int last = 0;
    for (int d = 0; d < param->rank; d++) {
        if (tensor->extents[d] == 0) return 0;
        last += (ft_int)(tensor->extents[d] - 1) * tensor->strides[d];
    }
    return (ft_int)tensor->address + (last + 1) * param->bytes;
}

static int ft_overlaps_itself(const ft_param *param, const flashtile_tensor *tensor) {
    ft_distances all = {.count = 0, .steps = 0};
    if (ft_end(param, tensor) == 0) return 0;
    for (int d = 0; d < param->rank; d++) {
        ft_int most = (ft_int)tensor->extents[d] - 1;
        int same = 0;
        if (!ft_add_span(&all, tensor->strides[d], -most, most)) return 1;
        for (int e = 0; e < param->rank; e++) same += tensor->extents[e] > 1 && tensor->strides[e] == tensor->strides[d];
        if (most > 0 && (tensor->strides[d] == 0 || same > 1)) return 1;
    }
    return ft_meets(&all, 0, 0, 1);
}

static int ft_overlap(const ft_param *p, const flashtile_tensor *a, const ft_param *q, const flashtile_tensor *b) {
    ft_distances all = {.count = 0, .steps = 0};
    ft_int end_a = ft_end(p, a), end_b = ft_end(q, b);
    int fits = 1;
    if (end_a == 0 || end_b == 0 || end_a <= (ft_int)b->address || end_b <= (ft_int)a->address) return 0;
    for (int d = 0; d < p->rank; d++) fits &= ft_add_span(&all, (ft_int)a->strides[d] * p->bytes, 0, (ft_int)a->extents[d] - 1);
    for (int d = 0; d < q->rank; d++) fits &= ft_add_span(&all, (ft_int)b->strides[d] * q->bytes, 1 - (ft_int)b->extents[d], 0);
    fits &= ft_add_span(&all, 1, 1 - q->bytes, p->bytes - 1);
    return !fits || ft_meets(&all, 0, (ft_int)b->address - (ft_int)a->address, 0);
}

static flashtile_status ft_check_aliases(const ft_call *call) {
    const ft_param *param = call->kernel->param;
    for (int n = 0; n < call->kernel->params; n++) {
        if (!param[n].output) continue;
        if (ft_overlaps_itself(&param[n], call->argument[n].tensor))
            return ft_fail(call->error, FLASHTILE_OVERLAP, "elements of the output `%s` share memory", param[n].name);
        for (int m = 0; m < call->kernel->params; m++)
            if (m != n && param[m].kind == FT_TENSOR && ft_overlap(&param[n], call->argument[n].tensor, &param[m], call->argument[m].tensor))
                return ft_fail(call->error, FLASHTILE_OVERLAP, "the output `%s` shares memory with `%s`", param[n].name, param[m].name);
    }
    return FLASHTILE_OK;
}

/* ---- folded rows (codegen/src/abi.rs, device/fold.rs) ---- */

typedef struct { int64_t groups, share, rows, folded; } ft_folded;

static int ft_fold_sizes(const ft_fold *fold, const int64_t *sizes, ft_folded *found) {
    int64_t heads;
    if (!fold || !ft_exact(&fold->heads, sizes, &heads) || !ft_exact(&fold->rows, sizes, &found->rows)) return 0;
    if (!ft_exact(&fold->groups, sizes, &found->groups) || found->groups <= 0) return 0;
    if (heads <= 0 || heads % found->groups != 0) return 0;
    found->share = heads / found->groups;
    ft_int folded = (ft_int)found->share * found->rows;
    if (folded < 0 || folded > FT_MAX_SIZE) return 0;
    found->folded = (int64_t)folded;
    return 1;
}

static int ft_fold_strides(const ft_folded *found, int64_t *strides, int dimension, int rank) {
    int64_t head = strides[dimension], row = strides[dimension + 1];
    if (found->share == 1 || found->rows == 0) return 1;
    int64_t step = found->rows == 1 ? head : row;
    if ((ft_int)found->rows * step != head || (dimension + 2 == rank && step != 1)) return 0;
    if ((ft_int)head * found->share > INT64_MAX) return 0;
    strides[dimension] = head * found->share, strides[dimension + 1] = step;
    return 1;
}

static int ft_folds(const ft_call *call) {
    const ft_fold *fold = call->kernel->fold;
    ft_folded found;
    if (!ft_fold_sizes(fold, call->sizes, &found)) return 0;
    for (int n = 0; n < fold->count; n++) {
        int64_t strides[FLASHTILE_RANK];
        memcpy(strides, call->argument[fold->tensors[n][0]].tensor->strides, sizeof strides);
        if (!ft_fold_strides(&found, strides, fold->tensors[n][1], call->kernel->param[fold->tensors[n][0]].rank)) return 0;
    }
    return 1;
}

/* ---- facts and the variant for them (device/facts.rs, bundle/choose.rs) ---- */

typedef struct { uint32_t positive; int alignment, foldable, wide; } ft_facts;

static ft_facts ft_find_facts(const ft_call *call, int wide) {
    ft_facts facts = {0, 16, ft_folds(call), wide};
    uint64_t bits = 16;
    int scalar = 0;
    for (int n = 0; n < call->kernel->params; n++) {
        const ft_param *param = &call->kernel->param[n];
        if (param->kind == FT_F32) {
            float x = call->argument[n].f32;
            facts.positive |= (uint32_t)(x > 0.0f && x <= 3.402823466e+38f) << scalar++;
        }
        if (param->kind != FT_TENSOR || !param->wide) continue;
        const flashtile_tensor *tensor = call->argument[n].tensor;
        bits |= tensor->address;
        for (int d = 0; d + 1 < param->rank; d++)
            if (tensor->extents[d] > 1) bits |= (uint64_t)tensor->strides[d] * (uint64_t)param->bytes;
    }
    facts.alignment = (int)(bits & (~bits + 1));
    return facts;
}

static int ft_bucket(int64_t size) {
    int bucket = 0;
    if (size <= 0) return 0;
    while (((int64_t)1 << bucket) < size) bucket++;
    return bucket + 1;
}

/* The facts that a variant needs and the call lacks, in words; 0 if there are none. */
static int ft_lacks(const ft_call *call, const ft_variant *variant, const ft_facts *facts, char *text, size_t bytes) {
    size_t used = 0;
    int count = 0, scalar = 0;
    if (bytes) text[0] = 0;
#define FT_LACK(...) do { count++; if (used < bytes) used += (size_t)snprintf(text + used, bytes - used, "%s", used ? "; " : ""); \
        if (used < bytes) used += (size_t)snprintf(text + used, bytes - used, __VA_ARGS__); } while (0)
    for (int n = 0; n < call->kernel->params; n++) {
        if (call->kernel->param[n].kind != FT_F32) continue;
        if ((variant->positive & ~facts->positive) >> scalar++ & 1) FT_LACK("`%s` must be positive", call->kernel->param[n].name);
    }
    if (variant->alignment > facts->alignment) FT_LACK("addresses and strides of matrices must be multiples of %d bytes", variant->alignment);
    if (variant->foldable && !facts->foldable) FT_LACK("rows of the heads of a group must follow each other");
    if (facts->wide && !variant->wide) FT_LACK("index arithmetic must stay within 32 bits");
#undef FT_LACK
    return count;
}

static flashtile_status ft_choose(const ft_call *call, const ft_arch *arch, const ft_facts *facts, const ft_code **code) {
    const ft_variant *best = NULL, *least = &arch->variant[0];
    int64_t nearest = 0;
    char text[256];
    for (int n = 0; n < arch->variants; n++) {
        const ft_variant *variant = &arch->variant[n];
        int64_t distance = 0;
        if (variant->rank > least->rank) least = variant;
        if (ft_lacks(call, variant, facts, NULL, 0)) continue;
        for (int s = 0; s < call->kernel->runtime_sizes; s++)
            distance += llabs((long long)ft_bucket(call->sizes[call->kernel->runtime_size[s]]) - variant->buckets[s]);
        if (best && (variant->rank > best->rank || (variant->rank == best->rank && distance >= nearest))) continue;
        best = variant, nearest = distance;
    }
    if (!best) {
        ft_lacks(call, least, facts, text, sizeof text);
        return ft_fail(call->error, FLASHTILE_NO_VARIANT, "no code for these arguments: %s", text);
    }
    *code = &arch->code[best->code];
    return FLASHTILE_OK;
}

/* ---- the driver ---- */

typedef int CUresult;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct { _Alignas(64) uint64_t opaque[16]; } ft_tensor_map; /* CUtensorMap */
typedef struct { int id; char pad[4]; union { uint32_t numbers[16]; uint64_t align; } value; } ft_attribute; /* CUlaunchAttribute */
typedef struct {
    unsigned int grid[3], block[3], shared;
    CUstream stream;
    ft_attribute *attributes;
    unsigned int count;
} ft_config; /* CUlaunchConfig */

static struct {
    CUresult (*context)(CUcontext *);
    CUresult (*device)(int *);
    CUresult (*attribute)(int *, int, int);
    CUresult (*load)(CUmodule *, const void *);
    CUresult (*unload)(CUmodule);
    CUresult (*function)(CUfunction *, CUmodule, const char *);
    CUresult (*set)(CUfunction, int, int);
    CUresult (*launch)(const ft_config *, CUfunction, void **, void **);
    CUresult (*memset)(uint64_t, unsigned char, size_t, CUstream);
    CUresult (*encode)(ft_tensor_map *, int, uint32_t, uint64_t, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int, int, int, int);
    CUresult (*name)(CUresult, const char **);
} ft_driver;

/* Code loaded into a context. */
typedef struct ft_loaded {
    CUcontext context;
    const ft_code *code;
    CUfunction functions[FT_STEPS];
    struct ft_loaded *next;
} ft_loaded;

static atomic_flag ft_lock = ATOMIC_FLAG_INIT;
static int ft_driver_found;
static ft_loaded *ft_all;

static void ft_enter(void) { while (atomic_flag_test_and_set_explicit(&ft_lock, memory_order_acquire)) {} }
static void ft_leave(void) { atomic_flag_clear_explicit(&ft_lock, memory_order_release); }

static flashtile_status ft_find_driver(flashtile_error *error) {
    const struct { const char *name; void *slot; } wanted[] = {
        {"cuCtxGetCurrent", &ft_driver.context}, {"cuCtxGetDevice", &ft_driver.device}, {"cuDeviceGetAttribute", &ft_driver.attribute},
        {"cuModuleLoadData", &ft_driver.load}, {"cuModuleUnload", &ft_driver.unload}, {"cuModuleGetFunction", &ft_driver.function},
        {"cuFuncSetAttribute", &ft_driver.set}, {"cuLaunchKernelEx", &ft_driver.launch}, {"cuMemsetD8Async", &ft_driver.memset},
        {"cuTensorMapEncodeTiled", &ft_driver.encode}, {"cuGetErrorName", &ft_driver.name}};
    if (ft_driver_found) return FLASHTILE_OK;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) library = dlopen("libcuda.so", RTLD_NOW);
    if (!library) return ft_fail(error, FLASHTILE_NO_DRIVER, "neither libcuda.so.1 nor libcuda.so can be loaded; install the NVIDIA driver");
    for (size_t n = 0; n < sizeof wanted / sizeof *wanted; n++) {
        void *symbol = dlsym(library, wanted[n].name);
        if (!symbol) return ft_fail(error, FLASHTILE_NO_DRIVER, "the driver has no function %s; update it", wanted[n].name);
        memcpy(wanted[n].slot, &symbol, sizeof symbol);
    }
    ft_driver_found = 1;
    return FLASHTILE_OK;
}

static flashtile_status ft_driver_check(flashtile_error *error, const char *function, CUresult result) {
    const char *name = NULL;
    if (result == 0) return FLASHTILE_OK;
    if (ft_driver.name(result, &name) != 0 || !name) name = "an unknown error";
    return ft_fail(error, FLASHTILE_DRIVER, "%s failed: %s (%d)", function, name, result);
}

/* The context of the thread, and the GPU of it. */
typedef struct { CUcontext context; int major, minor, sms; } ft_gpu;

static flashtile_status ft_find_gpu(flashtile_error *error, ft_gpu *gpu) {
    enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76 };
    int device = 0;
    ft_enter();
    flashtile_status status = ft_find_driver(error);
    ft_leave();
    if (status) return status;
    status = ft_driver_check(error, "cuCtxGetCurrent", ft_driver.context(&gpu->context));
    if (!status && !gpu->context) return ft_fail(error, FLASHTILE_DRIVER, "no CUDA context is current on this thread; make one current");
    if (!status) status = ft_driver_check(error, "cuCtxGetDevice", ft_driver.device(&device));
    if (!status) status = ft_driver_check(error, "cuDeviceGetAttribute", ft_driver.attribute(&gpu->sms, MULTIPROCESSORS, device));
    if (!status) status = ft_driver_check(error, "cuDeviceGetAttribute", ft_driver.attribute(&gpu->major, MAJOR, device));
    if (!status) status = ft_driver_check(error, "cuDeviceGetAttribute", ft_driver.attribute(&gpu->minor, MINOR, device));
    return status;
}

/* Machine code runs on the same major version with the same or a higher minor one; architecture-specific code on its own. */
static const ft_arch *ft_find_arch(const ft_call *call, const ft_gpu *gpu) {
    const ft_arch *best = NULL;
    for (int n = 0; n < call->kernel->archs; n++) {
        const ft_arch *arch = &call->kernel->arch[n];
        int runs = arch->major == gpu->major && (arch->specific ? arch->minor == gpu->minor : arch->minor <= gpu->minor);
        if (runs && (!best || arch->minor >= best->minor)) best = arch;
    }
    if (!best) ft_fail(call->error, FLASHTILE_ARCHITECTURE, "no machine code of %s for a GPU of compute capability %d.%d; bundle it with --arch", call->kernel->name, gpu->major, gpu->minor);
    return best;
}

static flashtile_status ft_load_code(flashtile_error *error, const ft_code *code, ft_loaded *loaded) {
    enum { MAX_DYNAMIC_SHARED = 8 };
    CUmodule module;
    flashtile_status status = ft_driver_check(error, "cuModuleLoadData", ft_driver.load(&module, code->cubin));
    if (status) return status;
    for (int n = 0; !status && n < code->steps; n++) {
        status = ft_driver_check(error, "cuModuleGetFunction", ft_driver.function(&loaded->functions[n], module, code->step[n].entry));
        if (!status && code->step[n].shared > 48 << 10)
            status = ft_driver_check(error, "cuFuncSetAttribute", ft_driver.set(loaded->functions[n], MAX_DYNAMIC_SHARED, code->step[n].shared));
    }
    if (status) ft_driver.unload(module);
    return status;
}

static flashtile_status ft_functions(flashtile_error *error, const ft_gpu *gpu, const ft_code *code, const CUfunction **functions) {
    flashtile_status status = FLASHTILE_OK;
    ft_loaded *loaded;
    ft_enter();
    for (loaded = ft_all; loaded; loaded = loaded->next)
        if (loaded->context == gpu->context && loaded->code == code) break;
    if (!loaded && !(loaded = calloc(1, sizeof *loaded))) {
        status = ft_fail(error, FLASHTILE_DRIVER, "the host has no memory");
    } else if (!loaded->code) {
        status = ft_load_code(error, code, loaded);
        if (status) {
            free(loaded);
            loaded = NULL;
        } else {
            loaded->context = gpu->context, loaded->code = code, loaded->next = ft_all;
            ft_all = loaded;
        }
    }
    ft_leave();
    if (loaded) *functions = loaded->functions;
    return status;
}

/* ---- what a call is launched with (device/compiled: seen.rs, scratch.rs, parameters.rs, maps.rs, steps.rs) ---- */

typedef struct {
    ft_gpu gpu;
    const ft_code *code;
    int64_t sizes[FT_SIZES];
    ft_value values[FT_VALUES];
    uint32_t blocks[FT_STEPS];
    uint64_t counters[FT_STEPS]; /* offsets of zeroed workspaces */
    uint64_t zeroed, scratch, bytes;
} ft_plan;

static uint64_t ft_round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

static void ft_see(const ft_call *call, ft_plan *plan) {
    const ft_kernel *kernel = call->kernel;
    ft_folded found;
    memcpy(plan->sizes, call->sizes, sizeof plan->sizes);
    for (int n = 0; n < kernel->params; n++) {
        ft_value *value = &plan->values[n];
        value->rank = kernel->param[n].rank, value->bytes = kernel->param[n].bytes, value->type = kernel->param[n].type;
        value->f32 = call->argument[n].f32, value->i32 = call->argument[n].i32;
        if (kernel->param[n].kind != FT_TENSOR) continue;
        value->address = call->argument[n].tensor->address;
        memcpy(value->extents, call->argument[n].tensor->extents, sizeof value->extents);
        memcpy(value->strides, call->argument[n].tensor->strides, sizeof value->strides);
    }
    if (!plan->code->folded || !ft_fold_sizes(kernel->fold, call->sizes, &found)) return;
    plan->sizes[kernel->sizes] = found.folded;
    for (int n = 0; n < kernel->fold->count; n++) {
        int dimension = kernel->fold->tensors[n][1];
        ft_value *value = &plan->values[kernel->fold->tensors[n][0]];
        value->extents[dimension] = found.groups, value->extents[dimension + 1] = found.folded;
        ft_fold_strides(&found, value->strides, dimension, value->rank);
    }
}

/* Lays out a scratch tensor behind `bytes`; its address is an offset. */
static int ft_place_scratch(const ft_scratch *scratch, const int64_t *sizes, ft_value *value, uint64_t *bytes) {
    uint64_t all = 16, row, align = 16, step = 1;
    value->rank = scratch->rank, value->bytes = scratch->bytes, value->type = scratch->type;
    for (int d = 0; d < scratch->rank; d++) {
        value->extents[d] = ft_term(&scratch->shape[d], sizes);
        if (value->extents[d] < 0) return 0;
        uint64_t extent = value->extents[d] ? (uint64_t)value->extents[d] : 1;
        if (__builtin_mul_overflow(all, extent + 128, &all)) return 0;
        value->strides[d] = 1;
    }
    if (scratch->rank > 0) {
        row = (uint64_t)value->extents[scratch->rank - 1];
        while (align < 128 && align < row * (uint64_t)scratch->bytes) align *= 2;
        step = ft_round_up(row, align / (uint64_t)scratch->bytes);
    }
    for (int d = scratch->rank - 2; d >= 0; d--) {
        value->strides[d] = (int64_t)step;
        step *= (uint64_t)value->extents[d];
    }
    value->address = ft_round_up(*bytes, 256);
    return !__builtin_add_overflow(value->address, step * (uint64_t)scratch->bytes, bytes);
}

/* Blocks of a step; -1 if they are more than a grid can have. */
static int64_t ft_blocks(const ft_step *step, const int64_t *sizes, int sms, uint64_t *programs) {
    ft_int all = 1;
    for (int n = 0; n < step->grids; n++) {
        int64_t extent = ft_term(&step->grid[n].expr, sizes);
        if (extent < 0) return -1;
        all *= ((ft_int)extent + step->grid[n].block - 1) / step->grid[n].block;
        if (all > INT64_MAX) return -1;
    }
    if (all > FT_MAX_SIZE) return -1;
    *programs = (uint64_t)all;
    if (step->per_sm) all = ft_least(all, (ft_int)step->per_sm * sms);
    all = (all + step->cluster - 1) / step->cluster * step->cluster;
    return all > UINT32_MAX ? -1 : (int64_t)all;
}

static flashtile_status ft_size_steps(const ft_call *call, ft_plan *plan) {
    const ft_code *code = plan->code;
    plan->zeroed = 0, plan->scratch = 0;
    for (int n = 0; n < code->steps; n++) {
        const ft_step *step = &code->step[n];
        uint64_t programs = 0, bytes;
        int64_t blocks = ft_blocks(step, plan->sizes, plan->gpu.sms, &programs);
        if (blocks < 0 || __builtin_mul_overflow(programs, step->workspace_each, &bytes) || __builtin_add_overflow(bytes, step->workspace, &bytes))
            return ft_fail(call->error, FLASHTILE_TOO_LARGE, "more blocks or workspace than a launch can have");
        plan->blocks[n] = (uint32_t)blocks;
        plan->counters[n] = plan->zeroed;
        if (blocks > 0) plan->zeroed += ft_round_up(bytes, 256);
    }
    for (int n = 0; n < code->scratches; n++)
        if (!ft_place_scratch(&code->scratch[n], plan->sizes, &plan->values[call->kernel->params + n], &plan->scratch))
            return ft_fail(call->error, FLASHTILE_TOO_LARGE, "the scratch tensor `%s` is larger than any memory", code->scratch[n].name);
    if (__builtin_add_overflow(plan->zeroed, plan->scratch, &plan->bytes) || plan->bytes > INT64_MAX)
        return ft_fail(call->error, FLASHTILE_TOO_LARGE, "the workspace is larger than any memory");
    return FLASHTILE_OK;
}

/* Checks a call, and finds its code and sizes. */
static flashtile_status ft_prepare(ft_call *call, ft_plan *plan) {
    flashtile_status status = FLASHTILE_OK;
    int wide;
    if (call->error) call->error->status = FLASHTILE_OK, call->error->text[0] = 0;
    for (int n = 0; !status && n < call->kernel->params; n++)
        if (call->kernel->param[n].kind == FT_TENSOR) status = ft_check_tensor(call, n);
    if (!status) status = ft_solve(call);
    if (!status) status = ft_check_reach(call, &wide);
    if (!status) status = ft_check_aliases(call);
    if (!status) status = ft_find_gpu(call->error, &plan->gpu);
    if (status) return status;
    const ft_arch *arch = ft_find_arch(call, &plan->gpu);
    if (!arch) return FLASHTILE_ARCHITECTURE;
    ft_facts facts = ft_find_facts(call, wide);
    status = ft_choose(call, arch, &facts, &plan->code);
    if (status) return status;
    ft_see(call, plan);
    return ft_size_steps(call, plan);
}

static void ft_pack(const ft_step *step, const ft_plan *plan, uint64_t workspace, unsigned char *block) {
    for (int n = 0; n < step->fields; n++) {
        const ft_field *field = &step->field[n];
        const ft_value *value = &plan->values[field->a];
        int32_t size = (int32_t)plan->sizes[field->a < FT_SIZES ? field->a : 0];
        switch (field->kind) {
        case FT_POINTER: memcpy(block + field->offset, &value->address, 8); break;
        case FT_STRIDE: memcpy(block + field->offset, &value->strides[field->b], 8); break;
        case FT_SIZE_FIELD: memcpy(block + field->offset, &size, 4); break;
        case FT_SCALAR_FIELD: memcpy(block + field->offset, field->b ? (const void *)&value->i32 : (const void *)&value->f32, 4); break;
        case FT_WORKSPACE: memcpy(block + field->offset, &workspace, 8); break;
        }
    }
}

static flashtile_status ft_encode(const ft_call *call, const ft_map *map, const ft_value *value, ft_tensor_map *raw) {
    enum { INTERLEAVE_NONE = 0, SWIZZLE_64 = 2, SWIZZLE_128 = 3, PROMOTION_256 = 3, FILL_NONE = 0 };
    uint64_t extents[5], strides[5], address = value->address;
    uint32_t ones[5] = {1, 1, 1, 1, 1};
    for (int d = 0; d < map->rank; d++) {
        int64_t extent = value->extents[map->order[d]];
        if (extent == 0) address = 16; /* a tensor without elements is never read, but a map has no empty dimension */
        extents[d] = extent > 0 ? (uint64_t)extent : 1;
        if (d == 0) continue;
        strides[d - 1] = extent <= 1 ? 16 : (uint64_t)value->strides[map->order[d]] * (uint64_t)value->bytes;
        if (strides[d - 1] % 16 != 0) return ft_fail(call->error, FLASHTILE_STRIDE, "a stride of %llu bytes is not a multiple of 16", (unsigned long long)strides[d - 1]);
    }
    if (address % 16 != 0) return ft_fail(call->error, FLASHTILE_ADDRESS, "an address that TMA reads must be a multiple of 16");
    CUresult result = ft_driver.encode(raw, value->type, (uint32_t)map->rank, address, extents, strides, map->tile, ones, INTERLEAVE_NONE,
                                       map->swizzle == 128 ? SWIZZLE_128 : SWIZZLE_64, PROMOTION_256, FILL_NONE);
    return ft_driver_check(call->error, "cuTensorMapEncodeTiled", result);
}

static flashtile_status ft_queue(const ft_call *call, const ft_plan *plan, int n, CUfunction function, uint64_t workspace, int early, CUstream stream) {
    enum { CLUSTER = 4, EARLY = 6 };
    const ft_step *step = &plan->code->step[n];
    _Alignas(16) unsigned char block[FT_BLOCK];
    ft_tensor_map maps[FT_MAPS];
    void *pointers[FT_MAPS + 1];
    ft_attribute attributes[2];
    ft_config config = {{plan->blocks[n], 1, 1}, {(unsigned int)step->threads, 1, 1}, (unsigned int)step->shared, stream, attributes, 0};
    memset(block, 0, (size_t)step->block_bytes);
    memset(attributes, 0, sizeof attributes);
    ft_pack(step, plan, workspace, block);
    for (int m = 0; m < step->maps; m++) {
        flashtile_status status = ft_encode(call, &step->map[m], &plan->values[step->map[m].param], &maps[m]);
        if (status) return status;
        pointers[m] = &maps[m];
    }
    pointers[step->maps] = block;
    if (step->cluster > 1) {
        ft_attribute *cluster = &attributes[config.count++];
        cluster->id = CLUSTER;
        cluster->value.numbers[0] = (uint32_t)step->cluster, cluster->value.numbers[1] = cluster->value.numbers[2] = 1;
    }
    if (early) {
        ft_attribute *serial = &attributes[config.count++];
        serial->id = EARLY, serial->value.numbers[0] = 1;
    }
    return ft_driver_check(call->error, "cuLaunchKernelEx", ft_driver.launch(&config, function, pointers, NULL));
}

static flashtile_status ft_workspace_bytes(const ft_kernel *kernel, const ft_argument *argument, uint64_t *bytes, flashtile_error *error) {
    ft_call call = {.kernel = kernel, .argument = argument, .error = error};
    ft_plan plan = {.bytes = 0};
    flashtile_status status = ft_prepare(&call, &plan);
    *bytes = status ? 0 : plan.bytes;
    return status;
}

static flashtile_status ft_launch(const ft_kernel *kernel, const ft_argument *argument, flashtile_workspace workspace, CUstream stream, flashtile_error *error) {
    ft_call call = {.kernel = kernel, .argument = argument, .error = error};
    ft_plan plan = {.bytes = 0};
    const CUfunction *functions = NULL;
    int queued = 0;
    flashtile_status status = ft_prepare(&call, &plan);
    if (status) return status;
    if (plan.bytes > workspace.bytes || (plan.bytes > 0 && (workspace.address == 0 || workspace.address % 256 != 0)))
        return ft_fail(error, FLASHTILE_WORKSPACE, "the launch needs %llu bytes of workspace at a multiple of 256; %s_workspace says how many", (unsigned long long)plan.bytes, kernel->name);
    for (int n = 0; n < plan.code->scratches; n++) plan.values[kernel->params + n].address += workspace.address + plan.zeroed;
    status = ft_functions(error, &plan.gpu, plan.code, &functions);
    if (!status && plan.zeroed > 0) status = ft_driver_check(error, "cuMemsetD8Async", ft_driver.memset(workspace.address, 0, (size_t)plan.zeroed, stream));
    for (int n = 0; !status && n < plan.code->steps; n++) {
        const ft_step *step = &plan.code->step[n];
        if (plan.blocks[n] == 0) continue;
        uint64_t counters = step->workspace || step->workspace_each ? workspace.address + plan.counters[n] : 0;
        status = ft_queue(&call, &plan, n, functions[n], counters, queued && step->early, stream);
        queued = 1;
    }
    return status;
}

