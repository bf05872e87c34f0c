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
        if (blocks < 0 || __builtin_mul_overflow(programs, step->workspace_each, &bytes) ||
            __builtin_add_overflow(bytes, step->workspace, &bytes))
            return ft_fail(call->error, FLASHTILE_TOO_LARGE, "more blocks or workspace than a launch can have");
        plan->blocks[n] = (uint32_t)blocks;
        plan->counters[n] = plan->zeroed;
        if (blocks > 0) plan->zeroed += ft_round_up(bytes, 256);
    }
    for (int n = 0; n < code->scratches; n++)
        if (!ft_place_scratch(&code->scratch[n], plan->sizes, &plan->values[call->kernel->params + n], &plan->scratch))
            return ft_fail(call->error, FLASHTILE_TOO_LARGE, "the scratch tensor `%s` is larger than any memory",
                           code->scratch[n].name);
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
        case FT_SCALAR_FIELD:
            memcpy(block + field->offset, field->b ? (const void *)&value->i32 : (const void *)&value->f32, 4);
            break;
        case FT_WORKSPACE: memcpy(block + field->offset, &workspace, 8); break;
        }
    }
}

static flashtile_status ft_encode(const ft_call *call, const ft_map *map, const ft_value *value, ft_tensor_map *raw) {
    enum { INTERLEAVE_NONE = 0, SWIZZLE_NONE = 0, SWIZZLE_64 = 2, SWIZZLE_128 = 3, PROMOTION_128 = 2, FILL_NONE = 0 };
    const int swizzle = map->row_bytes == 128 ? SWIZZLE_128 : map->row_bytes == 64 ? SWIZZLE_64 : SWIZZLE_NONE;
    uint64_t extents[5], strides[5], address = value->address;
    uint32_t ones[5] = {1, 1, 1, 1, 1};
    for (int d = 0; d < map->rank; d++) {
        int64_t extent = value->extents[map->order[d]];
        if (extent == 0) address = 16; /* a tensor without elements is never read, but a map has no empty dimension */
        extents[d] = extent > 0 ? (uint64_t)extent : 1;
        if (d == 0) continue;
        if (d == 1 && map->order[0] == map->order[1]) { /* the last dimension, split into parts of a row of the box */
            if (extents[0] % map->tile[0] != 0)
                return ft_fail(call->error, FLASHTILE_EXTENT, "rows of %llu elements are not taken apart into parts of %u",
                               (unsigned long long)extents[0], map->tile[0]);
            extents[1] = extents[0] / map->tile[0];
            extents[0] = map->tile[0];
            strides[0] = (uint64_t)map->tile[0] * (uint64_t)value->bytes;
            continue;
        }
        strides[d - 1] = extent <= 1 ? 16 : (uint64_t)value->strides[map->order[d]] * (uint64_t)value->bytes;
        if (strides[d - 1] % 16 != 0)
            return ft_fail(call->error, FLASHTILE_STRIDE, "a stride of %llu bytes is not a multiple of 16",
                           (unsigned long long)strides[d - 1]);
    }
    if (address % 16 != 0) return ft_fail(call->error, FLASHTILE_ADDRESS, "an address that TMA reads must be a multiple of 16");
    CUresult result =
        ft_driver.encode(raw, value->type, (uint32_t)map->rank, address, extents, strides, map->tile, ones, INTERLEAVE_NONE,
                         swizzle, PROMOTION_128, FILL_NONE);
    return ft_driver_check(call->error, "cuTensorMapEncodeTiled", result);
}

static flashtile_status ft_queue(const ft_call *call, const ft_plan *plan, int n, CUfunction function, uint64_t workspace,
                                 int early, CUstream stream) {
    enum { CLUSTER = 4, EARLY = 6 };
    const ft_step *step = &plan->code->step[n];
    _Alignas(16) unsigned char block[FT_BLOCK];
    ft_tensor_map maps[FT_MAPS];
    void *pointers[FT_MAPS + 1];
    ft_attribute attributes[2];
    ft_config config = {
        {plan->blocks[n], 1, 1}, {(unsigned int)step->threads, 1, 1}, (unsigned int)step->shared, stream, attributes, 0};
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

static flashtile_status ft_workspace_bytes(const ft_kernel *kernel, const ft_argument *argument, uint64_t *bytes,
                                           flashtile_error *error) {
    ft_call call = {.kernel = kernel, .argument = argument, .error = error};
    ft_plan plan = {.bytes = 0};
    flashtile_status status = ft_prepare(&call, &plan);
    *bytes = status ? 0 : plan.bytes;
    return status;
}

static flashtile_status ft_launch(const ft_kernel *kernel, const ft_argument *argument, flashtile_workspace workspace,
                                  CUstream stream, flashtile_error *error) {
    ft_call call = {.kernel = kernel, .argument = argument, .error = error};
    ft_plan plan = {.bytes = 0};
    const CUfunction *functions = NULL;
    int queued = 0;
    flashtile_status status = ft_prepare(&call, &plan);
    if (status) return status;
    if (plan.bytes > workspace.bytes || (plan.bytes > 0 && (workspace.address == 0 || workspace.address % 256 != 0)))
        return ft_fail(error, FLASHTILE_WORKSPACE,
                       "the launch needs %llu bytes of workspace at a multiple of 256; %s_workspace says how many",
                       (unsigned long long)plan.bytes, kernel->name);
    for (int n = 0; n < plan.code->scratches; n++) plan.values[kernel->params + n].address += workspace.address + plan.zeroed;
    status = ft_functions(error, &plan.gpu, plan.code, &functions);
    if (!status && plan.zeroed > 0)
        status = ft_driver_check(error, "cuMemsetD8Async", ft_driver.memset(workspace.address, 0, (size_t)plan.zeroed, stream));
    for (int n = 0; !status && n < plan.code->steps; n++) {
        const ft_step *step = &plan.code->step[n];
        if (plan.blocks[n] == 0) continue;
        uint64_t counters = step->workspace || step->workspace_each ? workspace.address + plan.counters[n] : 0;
        status = ft_queue(&call, &plan, n, functions[n], counters, queued && step->early, stream);
        queued = 1;
    }
    return status;
}
