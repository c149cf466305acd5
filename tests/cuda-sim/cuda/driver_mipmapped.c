/* Driver API: mipmapped arrays. Each level is an array of its own. */
#include <stdlib.h>

#include "bodies.h"
#include "driver.h"
#include "simulation.h"

int cuArray3DCreate_v2(void **out, const struct array_descriptor *descriptor) BODY(cuArray3DCreate_v2);
int cuArrayDestroy(void *array) BODY(cuArrayDestroy);

/* CUDA_ARRAY3D_*, cuda.h */
enum { LAYERED = 0x01, CUBEMAP = 0x04, SPARSE = 0x40, DEFERRED_MAPPING = 0x80 };

enum { MOST_LEVELS = 64 };

struct mipmapped_array {
    unsigned count;
    void *levels[MOST_LEVELS];
};

static size_t halved(size_t size)
{
    return size > 1 ? size / 2 : size;
}

static void destroy(struct mipmapped_array *array)
{
    for (unsigned level = 0; level < array->count; level++)
        cuArrayDestroy(array->levels[level]);
    free(array);
}

ENTRY(int, cuMipmappedArrayCreate, struct mipmapped_array **out, const struct array_descriptor *wanted,
                                  unsigned count)
{
    struct mipmapped_array *array = calloc(1, sizeof *array);
    if (!array)
        return CUDA_OUT_OF_MEMORY;
    struct array_descriptor level = *wanted;
    bool in_layers = wanted->flags & (LAYERED | CUBEMAP);
    while (!(wanted->flags & (SPARSE | DEFERRED_MAPPING))) {
        int error = cuArray3DCreate_v2(&array->levels[array->count], &level);
        if (error) {
            destroy(array);
            return error;
        }
        array->count++;
        bool is_last = level.width <= 1 && level.height <= 1 && (in_layers || level.depth <= 1);
        if (is_last || array->count >= count || array->count == MOST_LEVELS)
            break;
        level.width = halved(level.width);
        level.height = halved(level.height);
        if (!in_layers)
            level.depth = halved(level.depth);
    }
    *out = array;
    return CUDA_OK;
}

ENTRY(int, cuMipmappedArrayDestroy, struct mipmapped_array *array)
{
    destroy(array);
    return CUDA_OK;
}
