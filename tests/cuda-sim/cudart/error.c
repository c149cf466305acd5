/* Runtime API: errors. */
#include "runtime.h"

static __thread int last_error;

int report(int error)
{
    if (error)
        last_error = error;
    return error;
}

EXPORT int cudaGetLastError(void)
{
    int error = last_error;
    last_error = CUDA_OK;
    return error;
}

EXPORT int cudaPeekAtLastError(void)
{
    return last_error;
}

EXPORT const char *cudaGetErrorName(int error)
{
    switch ((enum cuda_error)error) {
    case CUDA_OK: return "cudaSuccess";
    case CUDA_INVALID_VALUE: return "cudaErrorInvalidValue";
    case CUDA_OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
    case CUDA_MISSING_CONFIGURATION: return "cudaErrorMissingConfiguration";
    case CUDA_NO_DEVICE: return "cudaErrorNoDevice";
    case CUDA_INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case CUDA_INVALID_CONTEXT: return "cudaErrorDeviceUninitialized";
    case CUDA_NOT_FOUND: return "cudaErrorSymbolNotFound";
    case CUDA_NOT_READY: return "cudaErrorNotReady";
    case CUDA_NOT_SUPPORTED: return "cudaErrorNotSupported";
    case CUDA_OPERATING_SYSTEM: return "cudaErrorOperatingSystem";
    case CUDA_ILLEGAL_STATE: return "cudaErrorIllegalState";
    case CUDA_UNKNOWN: break;
    }
    return "cudaErrorUnknown";
}

EXPORT const char *cudaGetErrorString(int error)
{
    switch ((enum cuda_error)error) {
    case CUDA_OK: return "no error";
    case CUDA_INVALID_VALUE: return "invalid argument";
    case CUDA_OUT_OF_MEMORY: return "out of memory";
    case CUDA_MISSING_CONFIGURATION: return "__global__ function call is not configured";
    case CUDA_NO_DEVICE: return "no CUDA-capable device is detected";
    case CUDA_INVALID_DEVICE: return "invalid device ordinal";
    case CUDA_INVALID_CONTEXT: return "invalid device context";
    case CUDA_NOT_FOUND: return "named symbol not found";
    case CUDA_NOT_READY: return "device not ready";
    case CUDA_NOT_SUPPORTED: return "operation not supported";
    case CUDA_OPERATING_SYSTEM: return "OS call failed or operation not supported on this OS";
    case CUDA_ILLEGAL_STATE: return "the operation cannot be performed in the present state";
    case CUDA_UNKNOWN: break;
    }
    return "unknown error";
}
