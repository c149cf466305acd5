/* Runtime API: the other ways to get memory of a device. */
#include "runtime.h"

EXPORT int cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
    bind_context();
    device_pointer pointer = 0;
    int error = cuMemAllocPitch_v2(&pointer, pitch, width, height, 4);
    *out = (void *)(uintptr_t)pointer;
    return report(error);
}

/* cudaPitchedPtr and cudaExtent, driver_types.h */
struct pitched_pointer {
    void *pointer;
    size_t pitch, width, height;
};

struct extent {
    size_t width, height, depth;
};

EXPORT int cudaMalloc3D(struct pitched_pointer *out, struct extent extent)
{
    size_t pitch = 0;
    void *pointer = NULL;
    int error = cudaMallocPitch(&pointer, &pitch, extent.width, extent.height * extent.depth);
    *out = (struct pitched_pointer){ pointer, pitch, extent.width, extent.height };
    return error;
}

/* cudaChannelFormatDesc, driver_types.h: bits by channel */
struct channels {
    int x, y, z, w;
    int kind;
};

EXPORT int cudaMalloc3DArray(void **out, const struct channels *wanted, struct extent extent, unsigned flags)
{
    bind_context();
    unsigned count = !!wanted->x + !!wanted->y + !!wanted->z + !!wanted->w;
    int format = wanted->x == 8 ? 0x01 : wanted->x == 16 ? 0x02 : 0x20;
    struct array_descriptor array = { extent.width, extent.height, extent.depth, format, count, flags };
    return report(cuArray3DCreate_v2(out, &array));
}

EXPORT int cudaMallocArray(void **out, const struct channels *wanted, size_t width, size_t height, unsigned flags)
{
    return cudaMalloc3DArray(out, wanted, (struct extent){ width, height, 0 }, flags);
}

EXPORT int cudaFreeArray(void *array)
{
    return array ? report(cuArrayDestroy(array)) : CUDA_OK;
}

EXPORT int cudaMallocFromPoolAsync(void **out, size_t size, void *pool, void *stream)
{
    bind_context();
    device_pointer pointer = 0;
    int error = cuMemAllocFromPoolAsync(&pointer, size, pool, stream);
    *out = (void *)(uintptr_t)pointer;
    return report(error);
}

int cudaMallocAsync(void **out, size_t size, void *stream);
int cudaFreeAsync(void *pointer, void *stream);

/* For programs with a default stream for each thread. */
EXPORT int cudaMallocAsync_ptsz(void **out, size_t size, void *stream)
{
    return cudaMallocAsync(out, size, stream);
}

EXPORT int cudaFreeAsync_ptsz(void *pointer, void *stream)
{
    return cudaFreeAsync(pointer, stream);
}

EXPORT int cudaDeviceReset(void)
{
    return report(cuDevicePrimaryCtxReset_v2(sim_current_device()));
}
