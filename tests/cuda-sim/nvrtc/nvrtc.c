/* NVRTC: compiles any source to an empty program. */
#include <stdlib.h>
#include <string.h>

#include "export.h"

enum { IMAGE_BYTES = 16 };

EXPORT int nvrtcVersion(int *major, int *minor)
{
    *major = CUDA_MAJOR;
    *minor = 2;
    return 0;
}

EXPORT int nvrtcCreateProgram(void **program)
{
    *program = malloc(1);
    return 0;
}

EXPORT int nvrtcDestroyProgram(void **program)
{
    free(*program);
    *program = NULL;
    return 0;
}

EXPORT int nvrtcGetPTXSize(void *, size_t *size)
{
    *size = IMAGE_BYTES;
    return 0;
}

EXPORT int nvrtcGetPTX(void *, char *image)
{
    memset(image, 0, IMAGE_BYTES);
    return 0;
}

EXPORT int nvrtcGetCUBINSize(void *, size_t *size)
{
    *size = IMAGE_BYTES;
    return 0;
}

EXPORT int nvrtcGetCUBIN(void *, char *image)
{
    memset(image, 0, IMAGE_BYTES);
    return 0;
}

EXPORT int nvrtcGetProgramLogSize(void *, size_t *size)
{
    *size = 1;
    return 0;
}

EXPORT int nvrtcGetProgramLog(void *, char *log)
{
    *log = 0;
    return 0;
}

EXPORT int nvrtcGetLoweredName(void *, const char *name, const char **out)
{
    *out = name;
    return 0;
}

EXPORT const char *nvrtcGetErrorString(int)
{
    return "result of the simulated NVRTC";
}
