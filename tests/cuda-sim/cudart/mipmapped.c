/* Runtime API: mipmapped arrays. */
#include "runtime.h"

int cuMipmappedArrayCreate(void **out, const struct array_descriptor *wanted, unsigned levels);
int cuMipmappedArrayDestroy(void *array);

/* cudaExtent and cudaChannelFormatDesc, driver_types.h */
struct mipmapped_extent {
    size_t width, height, depth;
};
struct mipmapped_channels {
    int x, y, z, w;
    int kind;
};

EXPORT int cudaMallocMipmappedArray(void **out, const struct mipmapped_channels *wanted,
                                    struct mipmapped_extent extent, unsigned levels, unsigned flags)
{
    bind_context();
    unsigned count = !!wanted->x + !!wanted->y + !!wanted->z + !!wanted->w;
    int format = wanted->x == 8 ? 0x01 : wanted->x == 16 ? 0x02 : 0x20;
    struct array_descriptor array = { extent.width, extent.height, extent.depth, format, count, flags };
    return report(cuMipmappedArrayCreate(out, &array, levels));
}

EXPORT int cudaFreeMipmappedArray(void *array)
{
    return array ? report(cuMipmappedArrayDestroy(array)) : CUDA_OK;
}
