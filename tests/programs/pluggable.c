/* An allocator for torch.cuda.memory.CUDAPluggableAllocator. */
#include <stddef.h>

int cudaMalloc(void **out, size_t size);
int cudaFree(void *pointer);
int cudaGetLastError(void);

__attribute__((visibility("default"))) void *plug_malloc(size_t size, int device, void *stream)
{
    (void)device, (void)stream;
    void *pointer = NULL;
    if (cudaMalloc(&pointer, size) == 0)
        return pointer;
    /* PyTorch would find the error after its next call. */
    cudaGetLastError();
    return NULL;
}

__attribute__((visibility("default"))) void plug_free(void *pointer, size_t size, int device, void *stream)
{
    (void)size, (void)device, (void)stream;
    cudaFree(pointer);
}
