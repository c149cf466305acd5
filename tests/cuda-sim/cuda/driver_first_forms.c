/* Driver API: contexts by the first forms of functions that have a _v2 today, and by those that are
 * deprecated. */
#include "simulation.h"

int cuCtxCreate_v2(void **out, unsigned flags, int device);
int cuCtxDestroy_v2(void *context);
int cuCtxGetCurrent(void **out);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **out);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxReset_v2(int device);

EXPORT int cuCtxCreate(void **out, unsigned flags, int device)
{
    return cuCtxCreate_v2(out, flags, device);
}

EXPORT int cuCtxDestroy(void *context)
{
    return cuCtxDestroy_v2(context);
}

EXPORT int cuCtxPushCurrent(void *context)
{
    return cuCtxPushCurrent_v2(context);
}

EXPORT int cuCtxPopCurrent(void **out)
{
    return cuCtxPopCurrent_v2(out);
}

EXPORT int cuDevicePrimaryCtxRelease(int device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

EXPORT int cuDevicePrimaryCtxReset(int device)
{
    return cuDevicePrimaryCtxReset_v2(device);
}

/* How often a context was attached; of a few at most. */
static struct {
    void *context;
    int count;
} attached[8];

EXPORT int cuCtxAttach(void **out, unsigned)
{
    void *context = NULL;
    cuCtxGetCurrent(&context);
    if (!context)
        return CUDA_INVALID_CONTEXT;
    for (int i = 0; i < 8; i++) {
        if (attached[i].context && attached[i].context != context)
            continue;
        attached[i].context = context;
        attached[i].count++;
        *out = context;
        return CUDA_OK;
    }
    return CUDA_INVALID_VALUE;
}

EXPORT int cuCtxDetach(void *context)
{
    for (int i = 0; i < 8; i++) {
        if (attached[i].context != context || attached[i].count == 0)
            continue;
        attached[i].count--;
        return CUDA_OK;
    }
    return cuCtxDestroy_v2(context);
}
