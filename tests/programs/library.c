/* A library that holds memory of its own. Built twice, under two names. */
#include <stddef.h>

int cudaSetDevice(int device);
int cudaMalloc(void **out, size_t size);
int cudaHostAlloc(void **out, size_t size, unsigned flags);

#define NAME_(prefix, name) prefix##_##name
#define NAME(prefix, name) NAME_(prefix, name)

__attribute__((noinline)) static int get_device_memory(size_t size)
{
    void *pointer;
    /* Not a tail call: this frame is to be on the stack. */
    int error = cudaMalloc(&pointer, size);
    __asm__ volatile("" : : "r"(pointer) : "memory");
    return error;
}

__attribute__((visibility("default"))) int NAME(LIBRARY, start)(size_t size)
{
    void *pointer;
    int error = get_device_memory(size);
    return error ? error : cudaHostAlloc(&pointer, size / 2, 0);
}

__attribute__((visibility("default"))) int NAME(LIBRARY, start_on)(int device, size_t size)
{
    int error = cudaSetDevice(device);
    return error ? error : get_device_memory(size);
}
