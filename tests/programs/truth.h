/* What a program holds of CUDA's memory, by its own count, and the calls that it makes. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OWN __attribute__((noinline))

/* The kinds of memory as memprobe names them. */
enum kind { DEVICE, POOL, VIRTUAL, ARRAY, MANAGED, PINNED, REGISTERED, KINDS };

static const char *const kind_names[KINDS] = { "device",  "pool",   "virtual",   "array",
                                               "managed", "pinned", "registered" };

static size_t held[KINDS];

/* Most bytes held at once, and allocations, of a program that counts them. */
static size_t most[KINDS], made[KINDS];

__attribute__((unused)) static void gain(enum kind kind, size_t size)
{
    held[kind] += size;
    made[kind]++;
    if (held[kind] > most[kind])
        most[kind] = held[kind];
}

__attribute__((unused)) static void lose(enum kind kind, size_t size)
{
    held[kind] -= size;
}

/* Waits until the file that the test makes is there. */
static void wait_for_the_test(const char *file)
{
    puts("ready");
    fflush(stdout);
    while (access(file, F_OK) != 0)
        usleep(2000);
}

static void print_truth(void)
{
    for (int kind = 0; kind < KINDS; kind++)
        printf("truth %s %zu\n", kind_names[kind], held[kind]);
    for (int kind = 0; kind < KINDS; kind++)
        printf("most %s %zu\nmade %s %zu\n", kind_names[kind], most[kind], kind_names[kind], made[kind]);
    fflush(stdout);
}

__attribute__((unused)) static void must(int error, const char *call)
{
    if (error) {
        fprintf(stderr, "%s fails: %d\n", call, error);
        exit(3);
    }
}

__attribute__((unused)) static void must_not(int error, const char *call)
{
    if (!error) {
        fprintf(stderr, "%s is to fail\n", call);
        exit(3);
    }
}

#define MUST(call) must(call, #call)
#define MUST_NOT(call) must_not(call, #call)

/* driver_types.h */
struct pitched_pointer {
    void *pointer;
    size_t pitch, width, height;
};
struct extent {
    size_t width, height, depth;
};
struct channels {
    int x, y, z, w, kind;
};

/* cuda_runtime_api.h */
int cudaSetDevice(int device);
int cudaMalloc(void **out, size_t size);
int cudaFree(void *pointer);
int cudaMallocAsync(void **out, size_t size, void *stream);
int cudaMallocAsync_ptsz(void **out, size_t size, void *stream);
int cudaMallocFromPoolAsync(void **out, size_t size, void *pool, void *stream);
int cudaFreeAsync(void *pointer, void *stream);
int cudaFreeAsync_ptsz(void *pointer, void *stream);
int cudaMallocManaged(void **out, size_t size, unsigned flags);
int cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height);
int cudaMalloc3D(struct pitched_pointer *out, struct extent extent);
int cudaMallocArray(void **out, const struct channels *channels, size_t width, size_t height, unsigned flags);
int cudaMalloc3DArray(void **out, const struct channels *channels, struct extent extent, unsigned flags);
int cudaFreeArray(void *array);
int cudaHostAlloc(void **out, size_t size, unsigned flags);
int cudaMallocHost(void **out, size_t size);
int cudaFreeHost(void *pointer);
int cudaHostRegister(void *pointer, size_t size, unsigned flags);
int cudaHostUnregister(void *pointer);
int cudaDeviceReset(void);

/* cuda.h */
typedef unsigned long long device_pointer;
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
int cuMemAlloc_v2(device_pointer *out, size_t size);
int cuMemFree_v2(device_pointer pointer);
int cuMemAllocManaged(device_pointer *out, size_t size, unsigned flags);
int cuMemAllocPitch_v2(device_pointer *out, size_t *pitch, size_t width, size_t height, unsigned element);
int cuMemAllocAsync(device_pointer *out, size_t size, void *stream);
int cuMemAllocAsync_ptsz(device_pointer *out, size_t size, void *stream);
int cuMemAllocFromPoolAsync(device_pointer *out, size_t size, void *pool, void *stream);
int cuMemFreeAsync(device_pointer pointer, void *stream);
int cuMemFreeAsync_ptsz(device_pointer pointer, void *stream);
int cuMemHostAlloc(void **out, size_t size, unsigned flags);
int cuMemAllocHost_v2(void **out, size_t size);
int cuMemFreeHost(void *pointer);
int cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags);
int cuMemHostUnregister(void *pointer);
int cuArrayCreate_v2(void **out, const struct flat_array *wanted);
int cuArray3DCreate_v2(void **out, const struct deep_array *wanted);
int cuArrayDestroy(void *array);
int cuMemAddressReserve(device_pointer *out, size_t size, size_t alignment, device_pointer at, unsigned long long flags);
int cuMemAddressFree(device_pointer base, size_t size);
int cuMemCreate(unsigned long long *handle, size_t size, const struct location_properties *wanted, unsigned long long flags);
int cuMemRetainAllocationHandle(unsigned long long *handle, void *address);
int cuMemRelease(unsigned long long handle);
int cuMemMap(device_pointer at, size_t size, size_t offset, unsigned long long handle, unsigned long long flags);
int cuMemUnmap(device_pointer at, size_t size);
int cuCtxCreate_v2(void **out, unsigned flags, int device);
int cuCtxDestroy_v2(void *context);
