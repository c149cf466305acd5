/* Devices: how many there are, the bytes taken of each, and the calling thread's own. */
#include <stdio.h>
#include <string.h>

#include "state.h"

static size_t taken[MAX_DEVICES];
static __thread int current_device;

EXPORT int sim_device_count(void)
{
    return settings()->devices;
}

EXPORT int sim_gpu_count(void)
{
    return settings()->gpus;
}

EXPORT int sim_gpu_of(int device)
{
    return settings()->gpu_of[device];
}

EXPORT void sim_uuid(unsigned char uuid[16], int gpu)
{
    memset(uuid, 0x5a, 16);
    uuid[0] = (unsigned char)gpu;
}

EXPORT int sim_compute_capability(void)
{
    return settings()->compute_capability;
}

EXPORT size_t sim_capacity(int device)
{
    (void)device;
    return settings()->capacity;
}

EXPORT size_t sim_used(int device)
{
    return __atomic_load_n(&taken[device], __ATOMIC_RELAXED) + settings()->context_bytes;
}

bool take_bytes(int device, size_t size)
{
    size_t used = sim_used(device), capacity = sim_capacity(device);
    if (used > capacity || size > capacity - used)
        return false;
    __atomic_add_fetch(&taken[device], size, __ATOMIC_RELAXED);
    share_used(device);
    return true;
}

void give_bytes_back(int device, size_t size)
{
    __atomic_sub_fetch(&taken[device], size, __ATOMIC_RELAXED);
    share_used(device);
}

EXPORT int sim_current_device(void)
{
    return current_device;
}

EXPORT void sim_set_current_device(int device)
{
    current_device = device;
}

EXPORT void sim_pci_bus_id(char *text, size_t length, int gpu)
{
    snprintf(text, length, "0000:%02X:00.0", gpu + 1);
}

EXPORT int sim_gpu_of_pci_bus_id(const char *text)
{
    unsigned domain, bus;
    if (sscanf(text, "%x:%x", &domain, &bus) != 2 || bus == 0)
        return -1;
    int gpu = (int)bus - 1;
    return gpu < sim_gpu_count() ? gpu : -1;
}
