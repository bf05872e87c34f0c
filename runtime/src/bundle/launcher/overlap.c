/* ---- shared memory of tensors (tensor/overlap.rs) ---- */

typedef struct {
    ft_int stride, least, most;
} ft_span;
typedef struct {
    ft_span span[32];
    int count, steps;
} ft_distances;

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
    for (int n = at + 1; n < all->count; n++)
        low += all->span[n].stride * all->span[n].least, high += all->span[n].stride * all->span[n].most;
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
            if (m != n && param[m].kind == FT_TENSOR &&
                ft_overlap(&param[n], call->argument[n].tensor, &param[m], call->argument[m].tensor))
                return ft_fail(call->error, FLASHTILE_OVERLAP, "the output `%s` shares memory with `%s`", param[n].name,
                               param[m].name);
    }
    return FLASHTILE_OK;
}

