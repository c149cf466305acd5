/* Runtime API: memory of another process. */
#include "runtime.h"

int cuIpcGetMemHandle(struct ipc_handle *out, device_pointer pointer);
int cuIpcOpenMemHandle_v2(device_pointer *out, struct ipc_handle handle, unsigned flags);
int cuIpcCloseMemHandle(device_pointer pointer);

EXPORT int cudaIpcGetMemHandle(struct ipc_handle *out, void *pointer)
{
    bind_context();
    return report(cuIpcGetMemHandle(out, (uintptr_t)pointer));
}

EXPORT int cudaIpcOpenMemHandle(void **out, struct ipc_handle handle, unsigned flags)
{
    bind_context();
    device_pointer pointer = 0;
    int error = cuIpcOpenMemHandle_v2(&pointer, handle, flags);
    *out = (void *)(uintptr_t)pointer;
    return report(error);
}

EXPORT int cudaIpcCloseMemHandle(void *pointer)
{
    return report(cuIpcCloseMemHandle((uintptr_t)pointer));
}
