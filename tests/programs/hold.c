/*
 * Holds so many MiB of device 0 until it is killed: `hold MIB`; with `hold MIB DEVICES` so many of
 * each of its first devices, and 2 MiB more from time to time. `hold MIB DEVICES LIST` sets
 * CUDA_VISIBLE_DEVICES to the list first, and to nothing after CUDA has read it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cudaMalloc(void **out, size_t size);
int cudaFree(void *memory);
int cudaSetDevice(int device);

static int take(int device, int mib, void **out)
{
    return cudaSetDevice(device) != 0 || cudaMalloc(out, (size_t)mib << 20) != 0;
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 1;
    int devices = count > 2 ? atoi(arguments[2]) : 1;
    void *held;
    if (count > 3)
        setenv("CUDA_VISIBLE_DEVICES", arguments[3], 1);
    for (int device = 0; device < devices; device++)
        if (take(device, atoi(arguments[1]), &held) != 0)
            return 1;
    if (count > 3)
        setenv("CUDA_VISIBLE_DEVICES", "", 1);
    puts("ready");
    fflush(stdout);
    while (count == 2)
        pause();
    for (int device = 0;; device = (device + 1) % devices) {
        if (take(device, 2, &held) != 0)
            return 1;
        usleep(20000);
        cudaFree(held);
    }
}
