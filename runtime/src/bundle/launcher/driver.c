/* ---- the driver ---- */

typedef int CUresult;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct {
    _Alignas(64) uint64_t opaque[16];
} ft_tensor_map; /* CUtensorMap */
typedef struct {
    int id;
    char pad[4];
    union {
        uint32_t numbers[16];
        uint64_t align;
    } value;
} ft_attribute; /* CUlaunchAttribute */
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
    CUresult (*encode)(ft_tensor_map *, int, uint32_t, uint64_t, const uint64_t *, const uint64_t *, const uint32_t *,
                       const uint32_t *, int, int, int, int);
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

static void ft_enter(void) {
    while (atomic_flag_test_and_set_explicit(&ft_lock, memory_order_acquire)) {}
}
static void ft_leave(void) { atomic_flag_clear_explicit(&ft_lock, memory_order_release); }

static flashtile_status ft_find_driver(flashtile_error *error) {
    const struct {
        const char *name;
        void *slot;
    } wanted[] = {{"cuCtxGetCurrent", &ft_driver.context},
                  {"cuCtxGetDevice", &ft_driver.device},
                  {"cuDeviceGetAttribute", &ft_driver.attribute},
                  {"cuModuleLoadData", &ft_driver.load},
                  {"cuModuleUnload", &ft_driver.unload},
                  {"cuModuleGetFunction", &ft_driver.function},
                  {"cuFuncSetAttribute", &ft_driver.set},
                  {"cuLaunchKernelEx", &ft_driver.launch},
                  {"cuMemsetD8Async", &ft_driver.memset},
                  {"cuTensorMapEncodeTiled", &ft_driver.encode},
                  {"cuGetErrorName", &ft_driver.name}};
    if (ft_driver_found) return FLASHTILE_OK;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) library = dlopen("libcuda.so", RTLD_NOW);
    if (!library)
        return ft_fail(error, FLASHTILE_NO_DRIVER,
                       "neither libcuda.so.1 nor libcuda.so can be loaded; install the NVIDIA driver");
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
typedef struct {
    CUcontext context;
    int major, minor, sms;
} ft_gpu;

static flashtile_status ft_find_gpu(flashtile_error *error, ft_gpu *gpu) {
    enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76 };
    int device = 0;
    ft_enter();
    flashtile_status status = ft_find_driver(error);
    ft_leave();
    if (status) return status;
    status = ft_driver_check(error, "cuCtxGetCurrent", ft_driver.context(&gpu->context));
    if (!status && !gpu->context)
        return ft_fail(error, FLASHTILE_DRIVER, "no CUDA context is current on this thread; make one current");
    if (!status) status = ft_driver_check(error, "cuCtxGetDevice", ft_driver.device(&device));
    if (!status)
        status = ft_driver_check(error, "cuDeviceGetAttribute", ft_driver.attribute(&gpu->sms, MULTIPROCESSORS, device));
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
    if (!best)
        ft_fail(call->error, FLASHTILE_ARCHITECTURE,
                "no machine code of %s for a GPU of compute capability %d.%d; bundle it with --arch", call->kernel->name,
                gpu->major, gpu->minor);
    return best;
}

static flashtile_status ft_load_code(flashtile_error *error, const ft_code *code, ft_loaded *loaded) {
    enum { MAX_DYNAMIC_SHARED = 8 };
    CUmodule module;
    flashtile_status status = ft_driver_check(error, "cuModuleLoadData", ft_driver.load(&module, code->cubin));
    if (status) return status;
    for (int n = 0; !status && n < code->steps; n++) {
        status = ft_driver_check(error, "cuModuleGetFunction",
                                 ft_driver.function(&loaded->functions[n], module, code->step[n].entry));
        if (!status && code->step[n].shared > 48 << 10)
            status = ft_driver_check(error, "cuFuncSetAttribute",
                                     ft_driver.set(loaded->functions[n], MAX_DYNAMIC_SHARED, code->step[n].shared));
    }
    if (status) ft_driver.unload(module);
    return status;
}

static flashtile_status ft_functions(flashtile_error *error, const ft_gpu *gpu, const ft_code *code,
                                     const CUfunction **functions) {
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

