/* ---- folded rows (codegen/src/abi.rs, device/fold.rs) ---- */

typedef struct {
    int64_t groups, share, rows, folded;
} ft_folded;

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

/* ---- facts and the variant for them (device/facts.rs, device/carried.rs) ---- */

typedef struct {
    uint32_t positive;
    int alignment[FT_VALUES]; /* of each parameter that is moved as a matrix */
    int foldable, wide;
} ft_facts;

/* Bytes of which the address of a tensor and its strides are multiples, 16 at most. */
static int ft_alignment(const ft_param *param, const flashtile_tensor *tensor) {
    uint64_t bits = 16 | tensor->address;
    for (int d = 0; d + 1 < param->rank; d++)
        if (tensor->extents[d] > 1) bits |= (uint64_t)tensor->strides[d] * (uint64_t)param->bytes;
    return (int)(bits & (~bits + 1));
}

static ft_facts ft_find_facts(const ft_call *call, int wide) {
    ft_facts facts = {.positive = 0, .foldable = ft_folds(call), .wide = wide};
    int scalar = 0;
    for (int n = 0; n < call->kernel->params; n++) {
        const ft_param *param = &call->kernel->param[n];
        if (param->kind == FT_F32) {
            float x = call->argument[n].f32;
            facts.positive |= (uint32_t)(x > 0.0f && x <= 3.402823466e+38f) << scalar++;
        }
        if (param->kind == FT_TENSOR && param->wide) facts.alignment[n] = ft_alignment(param, call->argument[n].tensor);
    }
    return facts;
}

/* Where a size is on a scale of ratios, in eighths of an octave. */
static int ft_eighths(int64_t size) {
    int octave = 0;
    if (size <= 0) return 0;
    while (size >> octave > 1) octave++;
    return 1 + 8 * octave + (int)((octave < 3 ? size << (3 - octave) : size >> (octave - 3)) % 8);
}

/* The facts that a variant needs and the call lacks, in words; 0 if there are none. */
static int ft_lacks(const ft_call *call, const ft_variant *variant, const ft_facts *facts, char *text, size_t bytes) {
    size_t used = 0;
    int count = 0, scalar = 0;
    if (bytes) text[0] = 0;
#define FT_LACK(...)                                                                                                           \
    do {                                                                                                                       \
        count++;                                                                                                               \
        if (used < bytes) used += (size_t)snprintf(text + used, bytes - used, "%s", used ? "; " : "");                         \
        if (used < bytes) used += (size_t)snprintf(text + used, bytes - used, __VA_ARGS__);                                    \
    } while (0)
    for (int n = 0; n < call->kernel->params; n++) {
        if (call->kernel->param[n].kind != FT_F32) continue;
        if ((variant->positive & ~facts->positive) >> scalar++ & 1)
            FT_LACK("`%s` must be positive", call->kernel->param[n].name);
    }
    for (int n = 0; n < call->kernel->params; n++) {
        const ft_param *param = &call->kernel->param[n];
        if (param->kind != FT_TENSOR || !param->wide) continue;
        if (variant->alignment[n] > facts->alignment[n])
            FT_LACK("the address and strides of `%s` must be multiples of %d bytes", param->name, variant->alignment[n]);
    }
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
            distance += llabs((long long)ft_eighths(call->sizes[call->kernel->runtime_size[s]]) - variant->places[s]);
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

