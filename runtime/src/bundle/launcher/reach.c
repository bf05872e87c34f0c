/* ---- intervals (dsl/src/analysis/reach/interval.rs) ---- */

typedef enum { FT_EMPTY, FT_NOT_KNOWN, FT_BETWEEN } ft_state;
typedef struct {
    ft_state state;
    ft_int lo, hi;
} ft_interval;
typedef struct {
    ft_interval range;
    ft_int magnitude, divisors;
} ft_known;

#define FT_INT_MAX ((ft_int)(((unsigned __int128)1 << 127) - 1))
#define FT_INT_MIN (-FT_INT_MAX - 1)

static ft_int ft_plus(ft_int a, ft_int b) {
    ft_int x;
    return __builtin_add_overflow(a, b, &x) ? (b < 0 ? FT_INT_MIN : FT_INT_MAX) : x;
}
static ft_int ft_minus(ft_int a, ft_int b) {
    ft_int x;
    return __builtin_sub_overflow(a, b, &x) ? (b > 0 ? FT_INT_MIN : FT_INT_MAX) : x;
}
static ft_int ft_times(ft_int a, ft_int b) {
    ft_int x;
    return __builtin_mul_overflow(a, b, &x) ? ((a < 0) != (b < 0) ? FT_INT_MIN : FT_INT_MAX) : x;
}
static ft_int ft_abs(ft_int a) { return a == FT_INT_MIN ? FT_INT_MAX : a < 0 ? -a : a; }
static ft_int ft_least(ft_int a, ft_int b) { return a < b ? a : b; }
static ft_int ft_most(ft_int a, ft_int b) { return a > b ? a : b; }
static ft_int ft_first(ft_int a, ft_int b) {
    (void)b;
    return a;
}

static ft_interval ft_between(ft_int lo, ft_int hi) {
    ft_interval interval = {lo <= hi ? FT_BETWEEN : FT_EMPTY, lo, hi};
    return interval;
}

static ft_interval ft_nothing(ft_state state) {
    ft_interval interval = {state, 0, 0};
    return interval;
}

static ft_int ft_magnitude(ft_interval x) { return x.state == FT_BETWEEN ? ft_most(ft_abs(x.lo), ft_abs(x.hi)) : 0; }
static int ft_within(ft_interval x, ft_int least, ft_int most) {
    return x.state == FT_BETWEEN && least <= x.lo && x.hi <= most;
}

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

/* ---- bits of 32-bit integers (dsl/src/ir/elementwise.rs) ---- */

/* The result for two values. */
static ft_int ft_bits_of_values(ft_op op, ft_int x, ft_int y) {
    uint32_t a = (uint32_t)x, b = (uint32_t)y, bits;
    switch (op) {
    case FT_BIT_AND: bits = a & b; break;
    case FT_BIT_OR: bits = a | b; break;
    case FT_BIT_XOR: bits = a ^ b; break;
    case FT_SHL: bits = a << (b & 31); break;
    case FT_SHR: return ft_floor_div(x, (ft_int)1 << (b & 31));
    default: /* FT_MUL_HI */ bits = (uint32_t)(((uint64_t)a * b) >> 32);
    }
    return bits <= INT32_MAX ? (ft_int)bits : (ft_int)bits - ((ft_int)1 << 32);
}

/* The largest number that has no bit above the highest of `x`. */
static ft_int ft_all_bits(ft_int x) {
    ft_int all = 0;
    while (all < x) all = 2 * all + 1;
    return all;
}

/* The results for operands within 32 bits; one beyond them wraps, and is not known. */
static ft_interval ft_bits(ft_op op, ft_interval x, ft_interval y) {
    if (!ft_within(x, INT32_MIN, INT32_MAX) || !ft_within(y, INT32_MIN, INT32_MAX))
        return ft_nothing(x.state == FT_EMPTY || y.state == FT_EMPTY ? FT_EMPTY : FT_NOT_KNOWN);
    if (x.lo == x.hi && y.lo == y.hi) {
        ft_int exact = ft_bits_of_values(op, x.lo, y.lo);
        return ft_between(exact, exact);
    }
    const ft_interval any = ft_between(INT32_MIN, INT32_MAX);
    int natural = x.lo >= 0 && y.lo >= 0;
    ft_int most = ft_most(x.hi, y.hi);
    switch (op) {
    case FT_BIT_AND:
        if (natural) return ft_between(0, ft_least(x.hi, y.hi));
        return x.lo >= 0 ? ft_between(0, x.hi) : y.lo >= 0 ? ft_between(0, y.hi) : ft_between(INT32_MIN, most);
    case FT_BIT_OR: return natural ? ft_between(ft_most(x.lo, y.lo), ft_all_bits(most)) : any;
    case FT_BIT_XOR: return natural ? ft_between(0, ft_all_bits(most)) : any;
    case FT_SHL: {
        if (y.lo != y.hi || y.lo < 0 || y.lo > 31) return any;
        ft_interval shifted = ft_between(x.lo * ((ft_int)1 << y.lo), x.hi * ((ft_int)1 << y.lo));
        return ft_within(shifted, INT32_MIN, INT32_MAX) ? shifted : any;
    }
    case FT_SHR: { /* towards 0, or towards -1 if it is negative */
        int known = y.lo >= 0 && y.hi < 32;
        ft_int fewest = (ft_int)1 << (known ? y.lo : 0), farthest = (ft_int)1 << (known ? y.hi : 31);
        return ft_between(ft_least(ft_floor_div(x.lo, fewest), ft_floor_div(x.lo, farthest)),
                          ft_most(ft_floor_div(x.hi, fewest), ft_floor_div(x.hi, farthest)));
    }
    default: /* FT_MUL_HI */
        return natural ? ft_between((x.lo * y.lo) >> 32, (x.hi * y.hi) >> 32) : any;
    }
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
    case FT_BIT_AND:
    case FT_BIT_OR:
    case FT_BIT_XOR:
    case FT_SHL:
    case FT_SHR:
    case FT_MUL_HI:
        known.range = ft_bits(node->op, a->range, b->range);
        known.magnitude = ft_magnitude(known.range);
        known.divisors = 1;
        break;
    default: /* FT_EITHER */ known.range = ft_hull(a->range, b->range); known.magnitude = ft_most(a->magnitude, b->magnitude);
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
        return all[node->a].range.state == FT_EMPTY || ft_within(all[node->a].range, INT32_MIN, INT32_MAX) ? all[node->a]
                                                                                                           : known;
    case FT_CONSTANT:
    case FT_SIZE:
    case FT_SCALAR:
    case FT_BELOW:
    case FT_UNKNOWN:
        known.range = range ? *range : ft_leaf(call, node);
        known.magnitude = ft_magnitude(known.range);
        return known;
    default: return ft_binary(node, &all[node->a], &all[node->b]);
    }
}

/* A question about a value: is it never 0, or never outside of these limits? */
typedef struct {
    int not_zero;
    ft_int least, most;
} ft_question;

static int ft_proves(const ft_question *ask, ft_interval x) {
    if (ask->not_zero) return !(x.state == FT_BETWEEN && x.lo <= 0 && 0 <= x.hi);
    return ft_within(x, ask->least, ask->most);
}

static int ft_fails(const ft_question *ask, ft_int x) { return ask->not_zero ? x == 0 : x < ask->least || x > ask->most; }

typedef struct {
    int root, count, leaves;
    int below[FT_NODES];
    int leaf[FT_LEAVES];
} ft_tree;

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
                if (end)
                    corner[l].lo = corner[l].hi;
                else
                    corner[l].hi = corner[l].lo;
            }
            ft_interval at = ft_at(call, &tree, scratch, corner);
            if (at.state == FT_BETWEEN && ft_fails(ask, at.lo)) return 0;
        }
        for (int l = 0; l < tree.leaves; l++)
            if (ranges[l].state == FT_BETWEEN && ranges[l].hi > ranges[l].lo &&
                (widest < 0 || ranges[l].hi - ranges[l].lo >= ranges[widest].hi - ranges[widest].lo))
                widest = l;
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
    return ft_fail(call->error, FLASHTILE_INDEX, "`%s` must be %s for these sizes and scalars%s", call->kernel->node[node].text,
                   must, decided < 0 ? ", which was not decided" : "");
}

static flashtile_status ft_check_access(const ft_call *call, const ft_known *known, const ft_access *access) {
    int64_t extent, start, length;
    const char *name = call->kernel->param[access->param].name;
    if (!ft_exact(&access->extent, call->sizes, &extent)) return FLASHTILE_OK;
    if (access->node < 0) {
        if (!ft_exact(&access->start, call->sizes, &start) || !ft_exact(&access->length, call->sizes, &length))
            return FLASHTILE_OK;
        if (start < 0 || start + length > extent)
            return ft_fail(call->error, FLASHTILE_INDEX,
                           "the kernel addresses %lld .. %lld of dimension %d of `%s`, which is %lld", (long long)start,
                           (long long)(start + length), access->dimension, name, (long long)extent);
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
    for (int n = 0; !status && n < kernel->divisors; n++)
        status = ft_decide(call, known, kernel->divisor[n], zero, "other than 0");
    for (int n = 0; !status && n < kernel->indices; n++)
        status = ft_decide(call, known, kernel->index[n], in64, "within 64 bits");
    for (int n = 0; !status && n < kernel->exacts; n++)
        status = ft_decide(call, known, kernel->exact[n], in32, "within 32 bits");
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
            return ft_fail(call->error, FLASHTILE_EXTENT, "`%s` must be a whole number from 0 to 2^31 - 2^16",
                           kernel->checked[n].text);
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

