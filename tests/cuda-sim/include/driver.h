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
