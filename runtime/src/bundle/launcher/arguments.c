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
            return ft_fail(call->error, FLASHTILE_EXTENT, "dimension %d of `%s` has the extent %lld", d, param->name,
                           (long long)tensor->extents[d]);
        if (tensor->strides[d] < 0)
            return ft_fail(call->error, FLASHTILE_STRIDE, "dimension %d of `%s` has the stride %lld", d, param->name,
                           (long long)tensor->strides[d]);
        elements *= tensor->extents[d];
        if (elements > UINT64_MAX) break;
        if (tensor->extents[d] > 0) last += (ft_int)(tensor->extents[d] - 1) * tensor->strides[d];
    }
    if (elements > INT64_MAX || (elements && last >= INT64_MAX / param->bytes))
        return ft_fail(call->error, FLASHTILE_EXTENT, "`%s` reaches beyond all memory", param->name);
    if (elements && tensor->address == 0) return ft_fail(call->error, FLASHTILE_ADDRESS, "`%s` is null", param->name);
    int inner = param->rank - 1;
    if (param->rank > 0 && tensor->extents[inner] > 1 && tensor->strides[inner] != 1)
        return ft_fail(call->error, FLASHTILE_STRIDE, "the last dimension of `%s` must be contiguous, but has the stride %lld",
                       param->name, (long long)tensor->strides[inner]);
    if (tensor->address % (uint64_t)param->bytes != 0)
        return ft_fail(call->error, FLASHTILE_ADDRESS, "the address of `%s` must be a multiple of %d", param->name,
                       param->bytes);
    return FLASHTILE_OK;
}

static flashtile_status ft_solve(ft_call *call) {
    const ft_kernel *kernel = call->kernel;
    memcpy(call->sizes, kernel->consts, (size_t)kernel->sizes * sizeof *call->sizes);
    for (int n = 0; n < kernel->sources; n++) {
        const ft_source *source = &kernel->source[n];
        const char *name = kernel->param[source->param].name;
        int64_t extent = call->argument[source->param].tensor->extents[source->dimension];
        if (extent > FT_MAX_SIZE)
            return ft_fail(call->error, FLASHTILE_EXTENT, "dimension %d of `%s` is larger than 2^31 - 2^16", source->dimension,
                           name);
        int64_t scaled = extent * source->divisor - source->constant;
        if (scaled % source->coefficient != 0)
            return ft_fail(call->error, FLASHTILE_EXTENT, "dimension %d of `%s` is no extent that the kernel can have",
                           source->dimension, name);
        call->sizes[source->size] = scaled / source->coefficient;
    }
    for (int n = 0; n < kernel->ranges; n++) {
        const ft_range *range = &kernel->range[n];
        if (call->argument[range->param].tensor->extents[range->dimension] < range->least)
            return ft_fail(call->error, FLASHTILE_EXTENT, "dimension %d of `%s` must be at least %lld", range->dimension,
                           kernel->param[range->param].name, (long long)range->least);
    }
    for (int n = 0; n < kernel->params; n++) {
        const ft_param *param = &kernel->param[n];
        for (int d = 0; param->kind == FT_TENSOR && d < param->rank; d++) {
            int64_t expected, found = call->argument[n].tensor->extents[d];
            if (!ft_exact(&param->shape[d], call->sizes, &expected) || expected != found)
                return ft_fail(call->error, FLASHTILE_EXTENT,
                               "dimension %d of `%s` is %lld, which does not fit the other tensors", d, param->name,
                               (long long)found);
        }
    }
    return FLASHTILE_OK;
}

