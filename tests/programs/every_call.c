/* Every function of CUDA that gives out memory: twice each, and one of the two is given back. */
#include "truth.h"

enum { PAGE = 2 << 20 };

static const struct channels four_floats = { 32, 32, 32, 32, 2 };

/* Keeps the second of two allocations. */
#define TWICE(type, kind, size, allocate, release)                                                 \
    do {                                                                                           \
        typeof(type) first, kept;                                                                          \
        typeof(type) *out = &first;                                                                        \
        MUST(allocate);                                                                            \
        out = &kept;                                                                               \
        MUST(allocate);                                                                            \
        MUST(release);                                                                             \
        gain(kind, size);                                                                          \
        gain(kind, size);                                                                          \
        lose(kind, size);                                                                          \
    } while (0)

OWN static void runtime_calls(void)
{
    size_t pitch;
    TWICE(void *, DEVICE, 1000001, cudaMalloc(out, 1000001), cudaFree(first));
    TWICE(void *, POOL, 2002, cudaMallocAsync(out, 2002, NULL), cudaFreeAsync(first, NULL));
    TWICE(void *, POOL, 3003, cudaMallocAsync_ptsz(out, 3003, NULL), cudaFreeAsync_ptsz(first, NULL));
    TWICE(void *, POOL, 4004, cudaMallocFromPoolAsync(out, 4004, NULL, NULL), cudaFree(first));
    TWICE(void *, MANAGED, 5005, cudaMallocManaged(out, 5005, 1), cudaFree(first));
    TWICE(void *, DEVICE, pitch * 7, cudaMallocPitch(out, &pitch, 700, 7), cudaFree(first));
    TWICE(struct pitched_pointer, DEVICE, kept.pitch * 3 * 5,
          cudaMalloc3D(out, (struct extent){ 900, 3, 5 }), cudaFree(first.pointer));
    TWICE(void *, ARRAY, 64 * 16, cudaMallocArray(out, &four_floats, 64, 0, 0), cudaFreeArray(first));
    TWICE(void *, ARRAY, 8 * 4 * 2 * 16,
          cudaMalloc3DArray(out, &four_floats, (struct extent){ 8, 4, 2 }, 0), cudaFreeArray(first));
    TWICE(void *, PINNED, 6006, cudaHostAlloc(out, 6006, 0), cudaFreeHost(first));
    TWICE(void *, PINNED, 7007, cudaMallocHost(out, 7007), cudaFreeHost(first));
    static char buffers[2][8192];
    MUST(cudaHostRegister(buffers[0], 8192, 0));
    MUST(cudaHostRegister(buffers[1], 4096, 0));
    MUST(cudaHostUnregister(buffers[0]));
    gain(REGISTERED, 8192);
    gain(REGISTERED, 4096);
    lose(REGISTERED, 8192);
}

OWN static void driver_calls(void)
{
    size_t pitch;
    const struct flat_array flat = { 100, 3, 0x10, 2 };
    const struct deep_array deep = { 10, 3, 2, 0x20, 1, 0 };
    TWICE(device_pointer, DEVICE, 1100011, cuMemAlloc_v2(out, 1100011), cuMemFree_v2(first));
    TWICE(device_pointer, POOL, 220022, cuMemAllocAsync(out, 220022, NULL), cuMemFreeAsync(first, NULL));
    TWICE(device_pointer, POOL, 330033, cuMemAllocAsync_ptsz(out, 330033, NULL), cuMemFreeAsync_ptsz(first, NULL));
    TWICE(device_pointer, POOL, 440044, cuMemAllocFromPoolAsync(out, 440044, NULL, NULL), cuMemFree_v2(first));
    TWICE(device_pointer, MANAGED, 550055, cuMemAllocManaged(out, 550055, 1), cuMemFree_v2(first));
    TWICE(device_pointer, DEVICE, pitch * 11, cuMemAllocPitch_v2(out, &pitch, 1300, 11, 4), cuMemFree_v2(first));
    TWICE(void *, ARRAY, 100 * 3 * 4, cuArrayCreate_v2(out, &flat), cuArrayDestroy(first));
    TWICE(void *, ARRAY, 10 * 3 * 2 * 4, cuArray3DCreate_v2(out, &deep), cuArrayDestroy(first));
    TWICE(void *, PINNED, 660066, cuMemHostAlloc(out, 660066, 0), cuMemFreeHost(first));
    TWICE(void *, PINNED, 770077, cuMemAllocHost_v2(out, 770077), cuMemFreeHost(first));
    static char buffers[2][8192];
    MUST(cuMemHostRegister_v2(buffers[0], 8192, 0));
    MUST(cuMemHostRegister_v2(buffers[1], 8192, 0));
    MUST(cuMemHostUnregister(buffers[0]));
    gain(REGISTERED, 8192);
    gain(REGISTERED, 8192);
    lose(REGISTERED, 8192);
}

/* Physical memory is held as long as a handle or a mapping of it is left. */
OWN static void virtual_memory(void)
{
    const struct location_properties here = { .type = 1, .location_type = 1, .location = 0 };
    device_pointer base;
    unsigned long long handles[4], again;
    MUST(cuMemAddressReserve(&base, 16 * (size_t)PAGE, 0, 0, 0));
    for (int i = 0; i < 4; i++) {
        MUST(cuMemCreate(&handles[i], (size_t)(i + 1) * PAGE, &here, 0));
        gain(VIRTUAL, (size_t)(i + 1) * PAGE);
    }
    /* 0: mapped twice, released, unmapped once: held. */
    MUST(cuMemMap(base, PAGE, 0, handles[0], 0));
    MUST(cuMemMap(base + PAGE, PAGE, 0, handles[0], 0));
    MUST(cuMemRelease(handles[0]));
    MUST(cuMemUnmap(base, PAGE));
    /* 1: mapped, unmapped, released: gone. */
    MUST(cuMemMap(base + 4 * PAGE, 2 * PAGE, 0, handles[1], 0));
    MUST(cuMemUnmap(base + 4 * PAGE, 2 * PAGE));
    MUST(cuMemRelease(handles[1]));
    lose(VIRTUAL, 2 * (size_t)PAGE);
    /* 2: never mapped, never released: held. */
    /* 3: two handles, both released, mapped still: held until the last line. */
    MUST(cuMemMap(base + 8 * PAGE, 4 * PAGE, 0, handles[3], 0));
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(base + 8 * PAGE)));
    MUST(cuMemRelease(handles[3]));
    MUST(cuMemUnmap(base + 8 * PAGE, 4 * PAGE));
    MUST(cuMemRelease(again));
    lose(VIRTUAL, 4 * (size_t)PAGE);
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    wait_for_the_test(words[1]);
    MUST(cudaSetDevice(0));
    runtime_calls();
    driver_calls();
    virtual_memory();
    print_truth();
    return 0;
}
