/* Allocates memory of each kind on a real GPU and gives half of it back, in the driver API and the runtime API.
 *
 *   success LIBCUDA [LIBCUDART]
 *
 * Prints "ready" after cuInit, waits for a line on standard input, makes its calls, and prints for each kind of memory
 * "held KIND BYTES" (what it asked for and kept) and for each call that failed "refused FUNCTION ERROR". Then it waits
 * for the end of its input. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { DEVICE, VIRTUAL, ARRAY, MANAGED, PINNED, REGISTERED, KINDS };

static const char *const kind_names[KINDS] = { "device", "virtual", "array", "managed", "pinned", "registered" };
static size_t held[KINDS];

static void *driver, *runtime;

/* Structures of cuda.h and cuda_runtime_api.h. */
struct location_properties {
    int type, handle_types, location_type, location;
    void *unused;
    unsigned char flags[8];
};
struct flat_array {
    size_t width, height;
    int format;
    unsigned channels;
};
struct deep_array {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct channels {
    int x, y, z, w, kind;
};

static void *find(void *library, const char *name)
{
    return library ? dlsym(library, name) : NULL;
}

static int refused(const char *name, int error)
{
    if (error)
        printf("refused %s %d\n", name, error);
    return error;
}

/* Calls a function by name, where the library has it; its result, 0 for success. */
#define CALL(library, name, types, ...)                                                                        \
    ({                                                                                                         \
        int(*called_) types = (int(*) types)find(library, #name);                                              \
        called_ ? refused(#name, called_(__VA_ARGS__)) : -1;                                                   \
    })

/* Allocates twice with `allocate`, which writes to `out`, and gives the first back. */
#define TWICE(kind, bytes, allocate, release)                                                                  \
    do {                                                                                                       \
        uintptr_t first = 0, second = 0, *out = &first;                                                        \
        if (allocate)                                                                                          \
            break;                                                                                             \
        held[kind] += bytes;                                                                                   \
        out = &second;                                                                                         \
        if (!(allocate))                                                                                       \
            held[kind] += bytes;                                                                               \
        if (!(release))                                                                                        \
            held[kind] -= bytes;                                                                               \
    } while (0)

#define FREE(name, type) CALL(driver, name, (type), (type)first)

static void driver_calls(int device)
{
    size_t pitch = 0;
    void *pool = NULL;
    const struct flat_array flat = { 100, 3, 0x10, 2 };
    const struct deep_array deep = { 10, 3, 2, 0x20, 1, 0 };
    TWICE(DEVICE, 1100011, CALL(driver, cuMemAlloc_v2, (uintptr_t *, size_t), out, 1100011), FREE(cuMemFree_v2, uintptr_t));
    TWICE(DEVICE, 220022, CALL(driver, cuMemAllocAsync, (uintptr_t *, size_t, void *), out, 220022, NULL),
          CALL(driver, cuMemFreeAsync, (uintptr_t, void *), first, NULL));
    TWICE(DEVICE, 330033, CALL(driver, cuMemAllocAsync_ptsz, (uintptr_t *, size_t, void *), out, 330033, NULL),
          CALL(driver, cuMemFreeAsync_ptsz, (uintptr_t, void *), first, NULL));
    if (!CALL(driver, cuDeviceGetDefaultMemPool, (void **, int), &pool, device))
        TWICE(DEVICE, 440044,
              CALL(driver, cuMemAllocFromPoolAsync, (uintptr_t *, size_t, void *, void *), out, 440044, pool, NULL),
              FREE(cuMemFree_v2, uintptr_t));
    TWICE(MANAGED, 550055, CALL(driver, cuMemAllocManaged, (uintptr_t *, size_t, unsigned), out, 550055, 1),
          FREE(cuMemFree_v2, uintptr_t));
    TWICE(DEVICE, pitch * 11,
          CALL(driver, cuMemAllocPitch_v2, (uintptr_t *, size_t *, size_t, size_t, unsigned), out, &pitch, 1300, 11, 4),
          FREE(cuMemFree_v2, uintptr_t));
    TWICE(ARRAY, 100 * 3 * 4, CALL(driver, cuArrayCreate_v2, (uintptr_t *, const struct flat_array *), out, &flat),
          FREE(cuArrayDestroy, uintptr_t));
    TWICE(ARRAY, 10 * 3 * 2 * 4, CALL(driver, cuArray3DCreate_v2, (uintptr_t *, const struct deep_array *), out, &deep),
          FREE(cuArrayDestroy, uintptr_t));
    TWICE(PINNED, 660066, CALL(driver, cuMemHostAlloc, (uintptr_t *, size_t, unsigned), out, 660066, 0),
          FREE(cuMemFreeHost, uintptr_t));
    TWICE(PINNED, 770077, CALL(driver, cuMemAllocHost_v2, (uintptr_t *, size_t), out, 770077),
          FREE(cuMemFreeHost, uintptr_t));
    static char buffers[2][8192] __attribute__((aligned(4096)));
    for (int i = 0; i < 2; i++)
        if (!CALL(driver, cuMemHostRegister_v2, (void *, size_t, unsigned), buffers[i], 8192, 0))
            held[REGISTERED] += 8192;
    if (!CALL(driver, cuMemHostUnregister, (void *), buffers[0]))
        held[REGISTERED] -= 8192;
}

/* One piece of physical memory is mapped and its handle released: held by the mapping; another is unmapped and released. */
static void virtual_memory(int device)
{
    enum { PAGE = 2 << 20 };
    const struct location_properties here = { .type = 1, .location_type = 1, .location = device };
    uintptr_t base = 0;
    unsigned long long handles[2];
    if (CALL(driver, cuMemAddressReserve, (uintptr_t *, size_t, size_t, uintptr_t, unsigned long long), &base, 8 * (size_t)PAGE,
             0, 0, 0))
        return;
    for (int i = 0; i < 2; i++) {
        size_t size = (size_t)(i + 1) * PAGE;
        if (CALL(driver, cuMemCreate, (unsigned long long *, size_t, const struct location_properties *, unsigned long long),
                 &handles[i], size, &here, 0))
            return;
        held[VIRTUAL] += size;
        if (CALL(driver, cuMemMap, (uintptr_t, size_t, size_t, unsigned long long, unsigned long long), base + i * 4 * PAGE,
                 size, 0, handles[i], 0))
            return;
        CALL(driver, cuMemRelease, (unsigned long long), handles[i]);
    }
    if (!CALL(driver, cuMemUnmap, (uintptr_t, size_t), base + 4 * PAGE, 2 * PAGE))
        held[VIRTUAL] -= 2 * PAGE;
}

static void runtime_calls(void)
{
    size_t pitch = 0;
    const struct channels four_floats = { 32, 32, 32, 32, 2 };
    if (CALL(runtime, cudaSetDevice, (int), 0))
        return;
    TWICE(DEVICE, 1000001, CALL(runtime, cudaMalloc, (uintptr_t *, size_t), out, 1000001),
          CALL(runtime, cudaFree, (uintptr_t), first));
    TWICE(DEVICE, 2002, CALL(runtime, cudaMallocAsync, (uintptr_t *, size_t, void *), out, 2002, NULL),
          CALL(runtime, cudaFreeAsync, (uintptr_t, void *), first, NULL));
    TWICE(MANAGED, 5005, CALL(runtime, cudaMallocManaged, (uintptr_t *, size_t, unsigned), out, 5005, 1),
          CALL(runtime, cudaFree, (uintptr_t), first));
    TWICE(DEVICE, pitch * 7,
          CALL(runtime, cudaMallocPitch, (uintptr_t *, size_t *, size_t, size_t), out, &pitch, 700, 7),
          CALL(runtime, cudaFree, (uintptr_t), first));
    TWICE(ARRAY, 64 * 16,
          CALL(runtime, cudaMallocArray, (uintptr_t *, const struct channels *, size_t, size_t, unsigned), out, &four_floats,
               64, 0, 0),
          CALL(runtime, cudaFreeArray, (uintptr_t), first));
    TWICE(PINNED, 6006, CALL(runtime, cudaHostAlloc, (uintptr_t *, size_t, unsigned), out, 6006, 0),
          CALL(runtime, cudaFreeHost, (uintptr_t), first));
    TWICE(PINNED, 7007, CALL(runtime, cudaMallocHost, (uintptr_t *, size_t), out, 7007),
          CALL(runtime, cudaFreeHost, (uintptr_t), first));
}

int main(int count, char **words)
{
    char line[16];
    void *context = NULL;
    int device = 0;
    if (count < 2)
        return 2;
    driver = dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
    runtime = count > 2 ? dlopen(words[2], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!driver || (count > 2 && !runtime)) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    if (CALL(driver, cuInit, (unsigned), 0))
        return 3;
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 2;
    if (CALL(driver, cuDeviceGet, (int *, int), &device, 0) ||
        CALL(driver, cuDevicePrimaryCtxRetain, (void **, int), &context, device) ||
        CALL(driver, cuCtxSetCurrent, (void *), context))
        return 3;
    driver_calls(device);
    virtual_memory(device);
    if (runtime)
        runtime_calls();
    for (int kind = 0; kind < KINDS; kind++)
        printf("held %s %zu\n", kind_names[kind], held[kind]);
    puts("done");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        ;
    return 0;
}
