/*
 * Stands for libc10.so and libcudart.so: the functions that memprobe probes, and an allocator that
 * calls them as PyTorch's does (c10/core/Allocator.cpp, c10/cuda/CUDACachingAllocator.cpp@v2.15.0).
 * Built with -DC10 for the one and -DCUDART for the other, since they are known by their file names.
 */
#include <stddef.h>
#include <stdint.h>

/* Aligned so that a breakpoint within 64 bytes of a function's start is the function's own. */
#define EXPORTED __attribute__((visibility("default"), noinline, aligned(64)))

#ifdef C10
/* c10::Device: a type (1 is CUDA) and an index, a byte each, passed by value. */
struct device {
    int8_t type;
    int8_t index;
};

static volatile uint64_t seen;

EXPORTED void report(void *block, int64_t size, size_t allocated, size_t reserved,
                     struct device device)
    __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");

EXPORTED void report(void *block, int64_t size, size_t allocated, size_t reserved,
                     struct device device)
{
    seen += (uintptr_t)block + (uint64_t)size + allocated + reserved + (uint64_t)device.type;
}

EXPORTED void out_of_memory(int64_t size, size_t allocated, size_t reserved, struct device device)
    __asm__("_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");

EXPORTED void out_of_memory(int64_t size, size_t allocated, size_t reserved, struct device device)
{
    seen += (uint64_t)size + allocated + reserved + (uint64_t)device.type;
}
#endif

#ifdef CUDART
static uintptr_t next = 0x7f0000000000;

EXPORTED int cudaMalloc(void **pointer, size_t size)
{
    *pointer = (void *)next;
    next += (size + 0x1fffff) & ~(uintptr_t)0x1fffff;
    return 0;
}

EXPORTED int cudaFree(void *pointer)
{
    return pointer ? 0 : 1;
}
#endif
