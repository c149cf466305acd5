/* Driver API: green contexts. A part of a device's primary context, which stands for it. */
#include <stdlib.h>

#include "bodies.h"
#include "simulation.h"

int cuDevicePrimaryCtxRetain(void **context, int device) BODY(cuDevicePrimaryCtxRetain);
int cuDevicePrimaryCtxRelease_v2(int device) BODY(cuDevicePrimaryCtxRelease_v2);

struct green_context {
    int device;
    void *primary;
};

ENTRY(int, cuGreenCtxCreate, struct green_context **out, void *, int device, unsigned)
{
    void *primary;
    int error = cuDevicePrimaryCtxRetain(&primary, device);
    if (error)
        return error;
    struct green_context *green = malloc(sizeof *green);
    if (!green)
        return CUDA_OUT_OF_MEMORY;
    *green = (struct green_context){ device, primary };
    *out = green;
    return CUDA_OK;
}

ENTRY(int, cuCtxFromGreenCtx, void **out, struct green_context *green)
{
    *out = green->primary;
    return CUDA_OK;
}

ENTRY(int, cuGreenCtxDestroy, struct green_context *green)
{
    int error = cuDevicePrimaryCtxRelease_v2(green->device);
    free(green);
    return error;
}
