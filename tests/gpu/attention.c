/* Launches attention from a bundle on the GPU, and compares it with a reference in float64 that is computed here.
 * Built and run by bundle.sh. The kernel is attention_bf16_d128: out = softmax(q k^T * scale) v, and lse. */
#include "flashtile_bundle.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { D = 128 };

static struct {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*current)(void *);
    int (*allocate)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*up)(uint64_t, const void *, size_t);
    int (*down)(void *, uint64_t, size_t);
    int (*synchronize)(void);
} cu;

static void find(void *library, const char *name, void *slot) {
    void *symbol = dlsym(library, name);
    if (!symbol) exit((printf("the driver has no %s\n", name), 2));
    memcpy(slot, &symbol, sizeof symbol);
}

static void must(int result, const char *what) {
    if (result) exit((printf("%s failed: %d\n", what, result), 2));
}

static float of_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint16_t to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint64_t state = 1;
static float noise(void) { /* about normal: a sum of uniform numbers */
    float sum = 0;
    for (int n = 0; n < 12; n++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(state >> 40) / (float)(1 << 24);
    }
    return sum - 6;
}

typedef struct {
    int64_t extents[4], strides[4];
    size_t elements, first;
    uint16_t *host;
    uint64_t device;
} tensor;

/* A tensor of noise, whose rows have a gap and whose first element lies behind `first` others. */
static tensor make(int64_t b, int64_t h, int64_t n, int64_t gap, size_t first) {
    tensor t = {
        {b, h, n, D}, {h * n * (D + gap), n * (D + gap), D + gap, 1}, (size_t)(b * h * n * (D + gap)) + first, first, NULL, 0};
    t.host = malloc(t.elements * 2 + 2);
    for (size_t i = 0; i < t.elements; i++) t.host[i] = to_bf16(noise());
    must(cu.allocate(&t.device, t.elements * 2 + 2), "cuMemAlloc");
    must(cu.up(t.device, t.host, t.elements * 2), "cuMemcpyHtoD");
    return t;
}

static flashtile_tensor view(const tensor *t) {
    flashtile_tensor v = {t->device + 2 * t->first, {0}, {0}};
    memcpy(v.extents, t->extents, sizeof t->extents);
    memcpy(v.strides, t->strides, sizeof t->strides);
    return v;
}

static double at(const tensor *t, int64_t b, int64_t h, int64_t n, int64_t d) {
    return of_bf16(t->host[t->first + (size_t)(b * t->strides[0] + h * t->strides[1] + n * t->strides[2] + d)]);
}

/* The largest error of a row and of its lse. */
static void check_row(const tensor *q, const tensor *k, const tensor *v, const tensor *o, float lse, double scale, int64_t b,
                      int64_t h, int64_t m, double *worst) {
    int64_t keys = k->extents[2], g = h * k->extents[1] / q->extents[1];
    double *s = malloc((size_t)keys * sizeof *s), most = -INFINITY, sum = 0;
    for (int64_t n = 0; n < keys; n++) {
        s[n] = 0;
        for (int d = 0; d < D; d++) s[n] += at(q, b, h, m, d) * at(k, b, g, n, d);
        s[n] *= scale;
        most = fmax(most, s[n]);
    }
    for (int64_t n = 0; n < keys; n++) sum += s[n] = exp(s[n] - most);
    for (int d = 0; d < D; d++) {
        double exact = 0;
        for (int64_t n = 0; n < keys; n++) exact += s[n] / sum * at(v, b, g, n, d);
        double error = fabs(at(o, b, h, m, d) - exact);
        worst[0] = isnan(error) ? INFINITY : fmax(worst[0], error);
    }
    double error = fabs(lse - (most + log(sum)));
    worst[1] = isnan(error) ? INFINITY : fmax(worst[1], error);
    free(s);
}

static int run(const char *what, int64_t b, int64_t h, int64_t g, int64_t m, int64_t n, int64_t gap, size_t first,
               float scale) {
    tensor q = make(b, h, m, gap, first), k = make(b, g, n, gap, first), v = make(b, g, n, gap, first),
           o = make(b, h, m, gap, first);
    size_t rows = (size_t)(b * h * m);
    float *lse = malloc(rows * sizeof *lse);
    uint64_t device_lse;
    must(cu.allocate(&device_lse, rows * sizeof *lse), "cuMemAlloc");
    attention_bf16_d128_arguments a = {.q = view(&q),
                                       .k = view(&k),
                                       .v = view(&v),
                                       .scale = scale,
                                       .o = view(&o),
                                       .lse = {device_lse, {b, h, m}, {h * m, m, 1}}};
    flashtile_error error;
    flashtile_workspace workspace = {0, 0};
    if (attention_bf16_d128_workspace(&a, &workspace.bytes, &error)) return printf("%s: %s\n", what, error.text);
    if (workspace.bytes) must(cu.allocate(&workspace.address, workspace.bytes), "cuMemAlloc");
    for (int repeat = 0; repeat < 3; repeat++) /* a second launch finds the counters of the first */
        if (attention_bf16_d128(&a, workspace, NULL, &error)) return printf("%s: %s\n", what, error.text);
    must(cu.synchronize(), "cuCtxSynchronize");
    must(cu.down(o.host, o.device, o.elements * 2), "cuMemcpyDtoH");
    must(cu.down(lse, device_lse, rows * sizeof *lse), "cuMemcpyDtoH");
    double worst[2] = {0, 0};
    for (size_t row = 0; row < rows; row += rows / 97 + 1) {
        int64_t r = (int64_t)row;
        check_row(&q, &k, &v, &o, lse[row], scale, r / (h * m), r / m % h, r % m, worst);
    }
    /* Noise of variance 1: outputs are below 5, of which bf16 has 8 bits; p is rounded to bf16 too. */
    int right = worst[0] < 0.02 && worst[1] < 0.01;
    printf("%s: workspace %llu, largest error %.2e of o, %.2e of lse: %s\n", what, (unsigned long long)workspace.bytes,
           worst[0], worst[1], right ? "right" : "WRONG");
    for (const tensor *t[] = {&q, &k, &v, &o}, **p = t; p < t + 4; p++) free((*p)->host), cu.free((*p)->device);
    if (workspace.bytes) cu.free(workspace.address);
    cu.free(device_lse);
    free(lse);
    return !right;
}

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (!library) return printf("there is no libcuda.so.1\n"), 2;
    find(library, "cuInit", &cu.init), find(library, "cuDevicePrimaryCtxRetain", &cu.retain);
    find(library, "cuCtxSetCurrent", &cu.current), find(library, "cuMemAlloc_v2", &cu.allocate),
        find(library, "cuMemFree_v2", &cu.free);
    find(library, "cuMemcpyHtoD_v2", &cu.up), find(library, "cuMemcpyDtoH_v2", &cu.down),
        find(library, "cuCtxSynchronize", &cu.synchronize);
    must(cu.init(0), "cuInit");
    must(cu.retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cu.current(context), "cuCtxSetCurrent");
    int wrong = 0;
    wrong += !!run("packed, 500 rows, 700 keys", 2, 8, 4, 500, 700, 0, 0, 0.088388f);
    wrong += !!run("packed, 4096 rows", 1, 4, 4, 4096, 4096, 0, 0, 0.088388f);
    wrong += !!run("one row of grouped heads", 3, 16, 2, 1, 3000, 0, 0, 0.088388f);
    wrong += !!run("rows with a gap", 1, 4, 2, 130, 300, 8, 0, 0.088388f);
    wrong += !!run("misaligned", 1, 4, 2, 130, 300, 1, 3, 0.088388f);
    wrong += !!run("a negative scale", 1, 4, 2, 130, 300, 0, 0, -0.088388f);
    attention_bf16_d128_arguments nothing;
    flashtile_error error;
    uint64_t bytes;
    memset(&nothing, 0, sizeof nothing);
    nothing.q.extents[0] = 1;
    if (attention_bf16_d128_workspace(&nothing, &bytes, &error) != FLASHTILE_EXTENT)
        wrong += 1, printf("extents that do not fit were not refused\n");
    printf(wrong ? "%d wrong\n" : "all right\n", wrong);
    return wrong != 0;
}
