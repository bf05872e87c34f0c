/* A CUDA driver that does nothing but write down what it is asked for, a line a call, into the file that STUB_RECORD names. */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t hash;
} module_t;
typedef struct {
    char name[256];
    int maps, bytes, shared_limit;
    uint64_t hash;
} function_t;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct {
        int id;
        char pad[4];
        uint32_t numbers[16];
    } *attributes;
    unsigned count;
} config_t;

static char descriptions[64][256];
static unsigned described;

void stub_note(const char *line) {
    static FILE *file;
    if (!file) file = fopen(getenv("STUB_RECORD"), "w");
    fprintf(file, "%s\n", line);
    fflush(file);
}

static uint64_t fnv(const unsigned char *bytes, size_t length) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t n = 0; n < length; n++) hash = (hash ^ bytes[n]) * 0x100000001b3u;
    return hash;
}

/* Bytes of an ELF file: to the end of its tables and sections. */
static size_t length_of(const unsigned char *image) {
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof head);
    size_t end = head.e_shoff + (size_t)head.e_shnum * head.e_shentsize,
           programs = head.e_phoff + (size_t)head.e_phnum * head.e_phentsize;
    if (programs > end) end = programs;
    for (int n = 0; n < head.e_shnum; n++) {
        Elf64_Shdr section;
        memcpy(&section, image + head.e_shoff + (size_t)n * head.e_shentsize, sizeof section);
        if (section.sh_type != SHT_NOBITS && section.sh_offset + section.sh_size > end)
            end = section.sh_offset + section.sh_size;
    }
    return end;
}

int cuCtxGetCurrent(void **context) {
    *context = getenv("STUB_NO_CONTEXT") ? NULL : (void *)1;
    return 0;
}
int cuCtxGetDevice(int *device) {
    *device = 0;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int major = 0, minor = 0, sms = 0;
    (void)device;
    sscanf(getenv("STUB_GPU"), "%d %d %d", &major, &minor, &sms);
    *value = attribute == 16 ? sms : attribute == 75 ? major : attribute == 76 ? minor : -1;
    return *value < 0;
}

int cuModuleLoadData(void **module, const void *image) {
    module_t *own = malloc(sizeof *own);
    own->hash = fnv(image, length_of(image));
    *module = own;
    return 0;
}

int cuModuleUnload(void *module) {
    free(module);
    return 0;
}

/* STUB_FUNCTIONS has a line for each entry point: hash of its cubin, name, tensor maps, bytes of the parameter block. */
int cuModuleGetFunction(void **function, void *module, const char *name) {
    FILE *file = fopen(getenv("STUB_FUNCTIONS"), "r");
    function_t *own = calloc(1, sizeof *own);
    unsigned long long hash;
    while (fscanf(file, "%llx %255s %d %d", &hash, own->name, &own->maps, &own->bytes) == 4) {
        if (hash != ((module_t *)module)->hash || strcmp(own->name, name) != 0) continue;
        own->hash = hash;
        own->shared_limit = 48 << 10;
        *function = own;
        fclose(file);
        return 0;
    }
    fclose(file);
    free(own);
    return 500; /* CUDA_ERROR_NOT_FOUND */
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    if (attribute != 8) return 1;
    ((function_t *)function)->shared_limit = value;
    return 0;
}

int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void *stream) {
    char line[256];
    snprintf(line, sizeof line, "zero %llx %zu %d stream %p", (unsigned long long)address, bytes, value, stream);
    stub_note(line);
    return 0;
}

int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, uint64_t address, const uint64_t *extents,
                           const uint64_t *strides, const uint32_t *tile, const uint32_t *steps, int interleave, int swizzle,
                           int promotion, int fill) {
    unsigned at = described++ % 64;
    char *text = descriptions[at];
    int used = snprintf(text, 256, "%d:%llx:%d%d%d%d", type, (unsigned long long)address, interleave, swizzle, promotion, fill);
    if ((uintptr_t)map % 64 != 0) return 1;
    for (uint32_t d = 0; d < rank; d++)
        used += snprintf(text + used, 256 - used, ":%llu/%llu/%u/%u", (unsigned long long)extents[d],
                         d ? (unsigned long long)strides[d - 1] : 0, tile[d], steps[d]);
    memcpy(map, &at, sizeof at);
    return 0;
}

int cuLaunchKernelEx(const config_t *config, void *function, void **parameters, void **extra) {
    const function_t *own = function;
    static char line[16384];
    int cluster = 1, early = 0, used;
    (void)extra;
    for (unsigned n = 0; n < config->count; n++) {
        if (config->attributes[n].id == 4) cluster = (int)config->attributes[n].numbers[0];
        if (config->attributes[n].id == 6) early = (int)config->attributes[n].numbers[0];
    }
    if ((int)config->shared > own->shared_limit) return 1;
    used = snprintf(line, sizeof line, "launch %llx %s grid %u,%u,%u block %u,%u,%u shared %u cluster %d early %d stream %p",
                    (unsigned long long)own->hash, own->name, config->grid[0], config->grid[1], config->grid[2],
                    config->block[0], config->block[1], config->block[2], config->shared, cluster, early, config->stream);
    for (int n = 0; n < own->maps; n++) {
        unsigned at;
        memcpy(&at, parameters[n], sizeof at);
        used += snprintf(line + used, sizeof line - used, " map %s", descriptions[at % 64]);
    }
    used += snprintf(line + used, sizeof line - used, " parameters ");
    for (int n = 0; n < own->bytes; n++)
        used += snprintf(line + used, sizeof line - used, "%02x", ((unsigned char *)parameters[own->maps])[n]);
    stub_note(line);
    return 0;
}

int cuGetErrorName(int error, const char **name) {
    (void)error;
    *name = "CUDA_ERROR_OF_THE_STUB";
    return 0;
}
