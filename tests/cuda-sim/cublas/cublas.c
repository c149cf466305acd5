/* cuBLAS: handles and queries. The generated functions, which would compute, succeed. */
#include <stdlib.h>

#include "export.h"

EXPORT int cublasCreate_v2(void **handle)
{
    *handle = malloc(1);
    return 0;
}

EXPORT int cublasDestroy_v2(void *handle)
{
    free(handle);
    return 0;
}

EXPORT int cublasGetMathMode(void *, int *mode)
{
    *mode = 0; /* CUBLAS_DEFAULT_MATH, cublas_api.h */
    return 0;
}

EXPORT int cublasGetPointerMode_v2(void *, int *mode)
{
    *mode = 0; /* CUBLAS_POINTER_MODE_HOST, cublas_api.h */
    return 0;
}
