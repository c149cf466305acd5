/* NVML: what PyTorch asks when it words an out-of-memory error, and what monitors ask first.
 * Names and layouts are those of nvml.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "simulation.h"

/* nvmlReturn_t */
enum nvml_return {
    NVML_OK = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_INSUFFICIENT_SIZE = 7,
};

/* A device handle is the ordinal plus one. */
typedef void *nvml_device;

static nvml_device handle_of(int device)
{
    return (nvml_device)(uintptr_t)(device + 1);
}

static int ordinal_of(nvml_device handle)
{
    return (int)(uintptr_t)handle - 1;
}

SUCCEEDS(nvmlInit)
SUCCEEDS(nvmlInit_v2)
SUCCEEDS(nvmlInitWithFlags)
SUCCEEDS(nvmlShutdown)

EXPORT const char *nvmlErrorString(int error)
{
    return error == NVML_OK ? "Success" : "error of the simulated NVML";
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    snprintf(text, length, "600.00.00");
    return NVML_OK;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = CUDA_MAJOR * 1000 + 90;
    return NVML_OK;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)sim_device_count();
    return NVML_OK;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *out)
{
    if (index >= (unsigned)sim_device_count())
        return NVML_INVALID_ARGUMENT;
    *out = handle_of((int)index);
    return NVML_OK;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvml_device *out)
{
    int device = sim_device_of_pci_bus_id(text);
    if (device < 0)
        return NVML_INVALID_ARGUMENT;
    *out = handle_of(device);
    return NVML_OK;
}

EXPORT int nvmlDeviceGetName(nvml_device, char *text, unsigned length)
{
    snprintf(text, length, "Simulated GPU");
    return NVML_OK;
}

EXPORT int nvmlDeviceGetUUID(nvml_device device, char *text, unsigned length)
{
    snprintf(text, length, "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a%02x",
             (unsigned)ordinal_of(device));
    return NVML_OK;
}

/* nvmlMemory_t */
struct memory {
    unsigned long long total, free, used;
};

/* More processes than ever share a simulated device. */
enum { MOST_USERS = 256 };

EXPORT int nvmlDeviceGetMemoryInfo(nvml_device device, struct memory *out)
{
    struct sim_user users[MOST_USERS];
    int count = sim_users(ordinal_of(device), users, MOST_USERS);
    size_t total = sim_capacity(ordinal_of(device)), used = 0;
    for (int at = 0; at < count && at < MOST_USERS; at++)
        used += users[at].used;
    *out = (struct memory){ total, total > used ? total - used : 0, used };
    return NVML_OK;
}

/* nvmlMemory_v2_t */
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo_v2(nvml_device device, struct memory_v2 *out)
{
    struct memory known;
    int result = nvmlDeviceGetMemoryInfo(device, &known);
    *out = (struct memory_v2){ out->version, known.total, 0, known.free, known.used };
    return result;
}

/* nvmlProcessInfo_v2_t, and nvmlProcessInfo_v1_t, which lacks the last two members */
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct process_v1 {
    unsigned pid;
    unsigned long long used;
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvml_device device, unsigned *count,
                                                   struct process *out)
{
    struct sim_user users[MOST_USERS];
    unsigned room = *count;
    *count = (unsigned)sim_users(ordinal_of(device), users, MOST_USERS);
    if (room < *count || *count > MOST_USERS)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < *count; at++)
        out[at] = (struct process){ (unsigned)users[at].pid, users[at].used, ~0u, ~0u };
    return NVML_OK;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(nvml_device device, unsigned *count,
                                                struct process_v1 *out)
{
    struct process whole[MOST_USERS];
    unsigned room = *count;
    *count = MOST_USERS;
    int result = nvmlDeviceGetComputeRunningProcesses_v3(device, count, whole);
    if (result != NVML_OK || room < *count)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < *count; at++)
        out[at] = (struct process_v1){ whole[at].pid, whole[at].used };
    return NVML_OK;
}

/* Links between devices do not exist; PyTorch needs the names to. */
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void)
{
    return NVML_NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void)
{
    return NVML_NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(void)
{
    return NVML_NOT_SUPPORTED;
}
