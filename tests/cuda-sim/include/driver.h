/* The driver's functions that the runtime calls (cuda.h). */
#pragma once

#include "cuda_abi.h"

int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
int cuMemAlloc_v2(device_pointer *out, size_t size);
int cuMemFree_v2(device_pointer pointer);
int cuMemAllocManaged(device_pointer *out, size_t size, unsigned flags);
int cuMemHostAlloc(void **out, size_t size, unsigned flags);
int cuMemFreeHost(void *pointer);
int cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags);
int cuMemHostUnregister(void *pointer);
int cuMemAllocPitch_v2(device_pointer *out, size_t *pitch, size_t width, size_t height, unsigned element);
int cuMemAllocAsync(device_pointer *out, size_t size, void *stream);
int cuMemAllocFromPoolAsync(device_pointer *out, size_t size, void *pool, void *stream);
int cuMemFreeAsync(device_pointer pointer, void *stream);
int cuDevicePrimaryCtxReset_v2(int device);

/* The tables of functions that cuGetExportTable gives out by an identifier. NVIDIA's are not imitated:
 * this one is the simulation's own. */
struct private_table {
    size_t bytes;
    int (*primary_context)(void **context, int device);
};

/* 16 bytes, as a CUuuid has. */
#define PRIVATE_TABLE { 'm','e','m','p','r','o','b','e',' ','c','u','d','a','s','i','m' }
int cuGetExportTable(const void **table, const void *identifier);

/* The body of a function (entry.h), or NULL. */
void *sim_body_of(const char *name);

/* CUDA_ARRAY3D_DESCRIPTOR, cuda.h; without its third size and its flags CUDA_ARRAY_DESCRIPTOR */
struct array_descriptor {
    size_t width, height, depth;
    int format;
    unsigned channels;
    unsigned flags;
};

/* CUipcMemHandle, cuda.h; cudaIpcMemHandle_t, driver_types.h */
struct ipc_handle {
    char reserved[64];
};

int cuArray3DCreate_v2(void **out, const struct array_descriptor *descriptor);
int cuArrayDestroy(void *array);
