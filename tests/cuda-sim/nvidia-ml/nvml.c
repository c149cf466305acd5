/* NVML: what PyTorch asks when it words an out-of-memory error, and what monitors ask first.
 * Names and layouts are those of nvml.h. Built with NVML_OLD it is a library from before R470: the
 * functions that came later do not exist. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simulation.h"

/* nvmlReturn_t */
enum nvml_return {
    NVML_OK = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
};

/* A device handle is the GPU's number plus one: NVML knows nothing of CUDA_VISIBLE_DEVICES; that of a MIG device has the number of its instance,
 * from 1 on, above that. */
typedef void *nvml_device;
enum { INSTANCE_SHIFT = 8 };

static nvml_device handle_of(int gpu)
{
    return (nvml_device)(uintptr_t)(gpu + 1);
}

static int gpu_of(nvml_device handle)
{
    return (int)((uintptr_t)handle & ((1 << INSTANCE_SHIFT) - 1)) - 1;
}

/* 0 for a whole device. */
static int instance_of(nvml_device handle)
{
    return (int)((uintptr_t)handle >> INSTANCE_SHIFT);
}

/* Whether a setting has this value. */
static bool is_set_to(const char *name, const char *value)
{
    const char *text = getenv(name);
    return text && strcmp(text, value) == 0;
}

static int number_of(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* GPU instances of each device; 0 outside of MIG mode. */
static int instances(void)
{
    return number_of("CUDASIM_MIG", 0);
}

/* In MIG mode the driver tells of a whole device only who may see all its instances. */
static bool is_refused(nvml_device device)
{
    return instances() > 0 && instance_of(device) == 0 && is_set_to("CUDASIM_MIG_DEVICE", "refuses");
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
    *count = (unsigned)sim_gpu_count();
    return NVML_OK;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *out)
{
    if (index >= (unsigned)sim_gpu_count())
        return NVML_INVALID_ARGUMENT;
    *out = handle_of((int)index);
    return NVML_OK;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvml_device *out)
{
    int gpu = sim_gpu_of_pci_bus_id(text);
    if (gpu < 0)
        return NVML_INVALID_ARGUMENT;
    *out = handle_of(gpu);
    return NVML_OK;
}

EXPORT int nvmlDeviceGetName(nvml_device, char *text, unsigned length)
{
    snprintf(text, length, "Simulated GPU");
    return NVML_OK;
}

EXPORT int nvmlDeviceGetUUID(nvml_device device, char *text, unsigned length)
{
    unsigned char uuid[16];
    sim_uuid(uuid, gpu_of(device));
    /* A MIG device has one of its own. */
    uuid[1] = (unsigned char)(uuid[1] + instance_of(device));
    int written = snprintf(text, length, instance_of(device) ? "MIG" : "GPU");
    for (int at = 0; at < 16; at++) {
        const char *form = at == 0 || at == 4 || at == 6 || at == 8 || at == 10 ? "-%02x" : "%02x";
        written += snprintf(text + written, length - (unsigned)written, form, (unsigned)uuid[at]);
    }
    return NVML_OK;
}

/* nvmlPciInfo_t */
struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

EXPORT int nvmlDeviceGetPciInfo_v3(nvml_device device, struct pci_info *out)
{
    *out = (struct pci_info){ .bus = (unsigned)gpu_of(device) + 1 };
    sim_pci_bus_id(out->legacy_bus_id, sizeof out->legacy_bus_id, gpu_of(device));
    snprintf(out->bus_id, sizeof out->bus_id, "0000%s", out->legacy_bus_id);
    return NVML_OK;
}

/* ---- MIG: every instance has one compute instance */

EXPORT int nvmlDeviceGetMaxMigDeviceCount(nvml_device, unsigned *count)
{
    *count = (unsigned)instances();
    return NVML_OK;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(nvml_device device, unsigned index, nvml_device *out)
{
    if (index >= (unsigned)instances())
        return NVML_NOT_FOUND;
    *out = (nvml_device)((uintptr_t)device | (uintptr_t)(index + 1) << INSTANCE_SHIFT);
    return NVML_OK;
}

EXPORT int nvmlDeviceGetGpuInstanceId(nvml_device device, unsigned *id)
{
    if (instance_of(device) == 0)
        return NVML_NOT_SUPPORTED;
    *id = (unsigned)instance_of(device);
    return NVML_OK;
}

/* ---- who uses a device */

/* More processes than ever share a simulated device. */
enum { MOST_USERS = 256 };

/* A process, and the GPU instance that it runs on. */
struct user {
    int pid;
    uint64_t used;
    int instance;
};

static int by_pid(const void *a, const void *b)
{
    return ((const struct sim_user *)a)->pid - ((const struct sim_user *)b)->pid;
}

/* Those of a device or a MIG device, by PID; in MIG mode the instances take turns. */
static int users_of(nvml_device device, struct user *out)
{
    struct sim_user users[MOST_USERS];
    int count = sim_users(gpu_of(device), users, MOST_USERS), kept = 0;
    if (count > MOST_USERS)
        count = MOST_USERS;
    qsort(users, (size_t)count, sizeof *users, by_pid);
    for (int at = 0; at < count; at++) {
        int instance = instances() > 0 ? at % instances() + 1 : 0;
        if (instance_of(device) == 0 || instance_of(device) == instance)
            out[kept++] = (struct user){ users[at].pid, users[at].used, instance };
    }
    return kept;
}

/* ---- memory of a device */

/* nvmlMemory_t */
struct memory {
    unsigned long long total, free, used;
};

/* nvmlMemory_v2_t */
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

/* `used` without what is reserved. */
static int memory_of(nvml_device device, struct memory_v2 *out)
{
    if (is_set_to("CUDASIM_NVML_NA", "memory"))
        return NVML_NOT_SUPPORTED;
    if (is_refused(device))
        return NVML_NO_PERMISSION;
    struct user users[MOST_USERS];
    int count = users_of(device, users);
    size_t total = sim_capacity(gpu_of(device)), used = 0;
    if (instance_of(device) != 0)
        total /= (size_t)instances();
    /* As on an A100: some hundred MiB of 40 GiB. */
    size_t reserved = total / 64;
    for (int at = 0; at < count; at++)
        used += users[at].used;
    used += (size_t)number_of("CUDASIM_UNLISTED", 0) << 20;
    size_t taken = used + reserved;
    *out = (struct memory_v2){ out->version, total, reserved, total > taken ? total - taken : 0, used };
    return NVML_OK;
}

EXPORT int nvmlDeviceGetMemoryInfo(nvml_device device, struct memory *out)
{
    struct memory_v2 known = { 0 };
    int result = memory_of(device, &known);
    if (result != NVML_OK)
        return result;
#ifdef NVML_OLD
    /* Before R510 nobody counted what is reserved. */
    *out = (struct memory){ known.total - known.reserved, known.free, known.used };
#else
    *out = (struct memory){ known.total, known.free, known.used + known.reserved };
#endif
    return NVML_OK;
}

#ifndef NVML_OLD
EXPORT int nvmlDeviceGetMemoryInfo_v2(nvml_device device, struct memory_v2 *out)
{
    if (out->version != (sizeof *out | 2 << 24))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return memory_of(device, out);
}
#endif

/* ---- processes of a device */

/* nvmlProcessDetail_v1_t; nvmlProcessInfo_v2_t lacks the last member, nvmlProcessInfo_v1_t the last
 * three. */
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected;
};
enum { FIRST = 16, WITH_INSTANCES = 24, WITH_PROTECTED = 32, UNKNOWN = 40 };

enum list { COMPUTE, MPS };

/* NVML_VALUE_NOT_AVAILABLE */
static const unsigned long long not_available = ~0ull;

/* Bytes that an MPS server takes for itself. */
static const unsigned long long server_used = 30ull << 20;

static struct process process_of(struct user user)
{
    bool says_bytes = !is_set_to("CUDASIM_NVML_NA", "processes");
    bool in_instance = user.instance != 0;
    return (struct process){
        .pid = (unsigned)user.pid,
        .used = says_bytes ? user.used : not_available,
        .gpu_instance = in_instance ? (unsigned)user.instance : ~0u,
        .compute_instance = in_instance ? 0 : ~0u,
    };
}

/* Writes the list with so many bytes an entry. As drivers do, it leaves the padding alone. */
static int list_processes(nvml_device device, enum list list, unsigned *count, void *out, size_t form)
{
    if (is_refused(device))
        return NVML_NO_PERMISSION;
    int server = number_of("CUDASIM_MPS", 0);
    if (list == MPS && server == 0)
        return NVML_NOT_SUPPORTED;
    struct user users[MOST_USERS + 1];
    unsigned room = *count;
    *count = (unsigned)users_of(device, users);
    if (list == COMPUTE && server != 0)
        users[(*count)++] = (struct user){ server, server_used, 0 };
    if (room < *count || (*count > 0 && !out))
        return NVML_INSUFFICIENT_SIZE;
    if (is_set_to("CUDASIM_NVML_FORM", "unknown"))
        form = UNKNOWN;
    for (unsigned at = 0; at < *count; at++) {
        struct process process = process_of(users[at]);
        char *place = (char *)out + at * form;
        memcpy(place, &process.pid, sizeof process.pid);
        memcpy(place + 8, &process.used, sizeof process.used);
        if (form > FIRST)
            memcpy(place + 16, &process.gpu_instance, 8);
        if (form > WITH_INSTANCES)
            memset(place + 24, 0, form - WITH_INSTANCES);
    }
    return NVML_OK;
}

#define LISTS(name, list, form)                                                                    \
    EXPORT int name(nvml_device device, unsigned *count, void *out)                                \
    {                                                                                              \
        return list_processes(device, list, count, out, form);                                     \
    }
LISTS(nvmlDeviceGetComputeRunningProcesses, COMPUTE, FIRST)

#ifndef NVML_OLD
/* Bytes an entry of the third form of the functions, which drivers do not agree on. */
static size_t third_form(void)
{
    return (size_t)number_of("CUDASIM_NVML_FORM", WITH_INSTANCES);
}

LISTS(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, WITH_INSTANCES)
LISTS(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, third_form())
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, MPS, FIRST)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS, WITH_INSTANCES)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS, third_form())

/* nvmlProcessDetailList_v1_t */
struct detail_list {
    unsigned version, mode, count;
    struct process *processes;
};

EXPORT int nvmlDeviceGetRunningProcessDetailList(nvml_device device, struct detail_list *list)
{
    /* nvmlProcessMode_t */
    enum { MODE_COMPUTE = 0, MODE_MPS = 2 };
    if (list->version != (sizeof *list | 1 << 24))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    if (list->mode != MODE_COMPUTE && list->mode != MODE_MPS)
        return NVML_INVALID_ARGUMENT;
    enum list which = list->mode == MODE_MPS ? MPS : COMPUTE;
    return list_processes(device, which, &list->count, list->processes, WITH_PROTECTED);
}
#endif

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
