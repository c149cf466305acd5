/* Driver API: the other ways to get memory of a device. */
#include <stdlib.h>

#include "driver.h"
#include "state.h"

/* Rows begin at multiples of so many bytes. */
enum { PITCH = 512 };

static int allocate_on_device(device_pointer *out, size_t size)
{
    void *base;
    int error = sim_allocate(sim_current_device(), size, MEMORY_DEVICE, &base);
    *out = (uintptr_t)base;
    return error;
}

ENTRY(int, cuMemAllocPitch_v2, device_pointer *out, size_t *pitch, size_t width, size_t height,
      unsigned)
{
    if (!out || !pitch || !width || !height)
        return CUDA_INVALID_VALUE;
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return allocate_on_device(out, *pitch * height);
}

ENTRY(int, cuMemAllocHost_v2, void **out, size_t size)
{
    return out && size ? sim_allocate(sim_current_device(), size, MEMORY_HOST, out) : CUDA_INVALID_VALUE;
}

ENTRY(int, cuMemAllocAsync, device_pointer *out, size_t size, void *)
{
    return allocate_on_device(out, size);
}

ENTRY(int, cuMemAllocAsync_ptsz, device_pointer *out, size_t size, void *)
{
    return allocate_on_device(out, size);
}

ENTRY(int, cuMemAllocFromPoolAsync, device_pointer *out, size_t size, void *, void *)
{
    return allocate_on_device(out, size);
}

ENTRY(int, cuMemFreeAsync, device_pointer pointer, void *)
{
    return sim_free((void *)(uintptr_t)pointer, MEMORY_DEVICE);
}

ENTRY(int, cuMemFreeAsync_ptsz, device_pointer pointer, void *)
{
    return sim_free((void *)(uintptr_t)pointer, MEMORY_DEVICE);
}

/* CUarray_format, cuda.h */
static size_t element_bytes(int format)
{
    switch (format) {
    case 0x01:
    case 0x08: return 1;
    case 0x02:
    case 0x09:
    case 0x10: return 2;
    case 0x03:
    case 0x0a:
    case 0x20: return 4;
    }
    return 0;
}

/* An array is known by its address; nobody looks into it. */
static int create_array(void **out, const struct array_descriptor *wanted)
{
    size_t element = element_bytes(wanted->format) * wanted->channels;
    size_t height = wanted->height ? wanted->height : 1, depth = wanted->depth ? wanted->depth : 1;
    size_t size = wanted->width * height * depth * element;
    if (!size)
        return CUDA_INVALID_VALUE;
    return sim_allocate(sim_current_device(), size, MEMORY_DEVICE, out);
}

ENTRY(int, cuArray3DCreate_v2, void **out, const struct array_descriptor *wanted)
{
    return create_array(out, wanted);
}

/* CUDA_ARRAY_DESCRIPTOR, cuda.h */
struct flat_descriptor {
    size_t width, height;
    int format;
    unsigned channels;
};

ENTRY(int, cuArrayCreate_v2, void **out, const struct flat_descriptor *wanted)
{
    struct array_descriptor deep = { wanted->width, wanted->height, 0, wanted->format, wanted->channels, 0 };
    return create_array(out, &deep);
}

ENTRY(int, cuArrayDestroy, void *array)
{
    return sim_free(array, MEMORY_DEVICE);
}
