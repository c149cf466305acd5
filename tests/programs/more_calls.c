/* Functions of CUDA that give out arrays with levels, and memory that is not the process's own. Half of what
 * is given out is given back. */
#include "truth.h"

enum { PAGE = 2 << 20, LAYERED = 1, CUBEMAP = 4, SPARSE = 0x40, DEFERRED = 0x80 };

int cudaMallocMipmappedArray(void **out, const struct channels *channels, struct extent extent,
                             unsigned levels, unsigned flags);
int cudaFreeMipmappedArray(void *array);
int cuMipmappedArrayCreate(void **out, const struct deep_array *wanted, unsigned levels);
int cuMipmappedArrayDestroy(void *array);
int cuArray3DCreate_v2(void **out, const struct deep_array *wanted);

/* CUmulticastObjectProp, cuda.h */
struct multicast {
    unsigned devices;
    size_t size;
    unsigned long long handle_types, flags;
};
int cuMulticastCreate(unsigned long long *handle, const struct multicast *wanted);

static const struct channels two_shorts = { 16, 16, 0, 0, 0 };

OWN static void by_the_runtime(void)
{
    void *array;
    /* 4 bytes an element. */
    MUST(cudaMallocMipmappedArray(&array, &two_shorts, (struct extent){ 100, 30, 0 }, 3, 0));
    held[ARRAY] += 4 * (100 * 30 + 50 * 15 + 25 * 7);
    MUST(cudaMallocMipmappedArray(&array, &two_shorts, (struct extent){ 5, 4, 3 }, 100, 0));
    held[ARRAY] += 4 * (5 * 4 * 3 + 2 * 2 * 1 + 1);
    MUST(cudaMallocMipmappedArray(&array, &two_shorts, (struct extent){ 16, 16, 6 }, 2, CUBEMAP));
    held[ARRAY] += 4 * 6 * (16 * 16 + 8 * 8);
    MUST(cudaMallocMipmappedArray(&array, &two_shorts, (struct extent){ 1000, 0, 0 }, 4, 0));
    MUST(cudaFreeMipmappedArray(array));
    MUST(cudaMallocMipmappedArray(&array, &two_shorts, (struct extent){ 64, 64, 0 }, 2, SPARSE));
}

OWN static void by_the_driver(void)
{
    void *array;
    /* Halves, one channel: 2 bytes an element. */
    const struct deep_array deep = { 12, 10, 8, 0x10, 1, 0 };
    const struct deep_array layers = { 12, 10, 8, 0x10, 1, LAYERED };
    const struct deep_array nothing = { 12, 10, 8, 0x10, 1, DEFERRED };
    MUST(cuMipmappedArrayCreate(&array, &deep, 2));
    held[ARRAY] += 2 * (12 * 10 * 8 + 6 * 5 * 4);
    MUST(cuMipmappedArrayCreate(&array, &layers, 4));
    held[ARRAY] += 2 * 8 * (12 * 10 + 6 * 5 + 3 * 2 + 1);
    MUST(cuMipmappedArrayCreate(&array, &deep, 1));
    MUST(cuMipmappedArrayDestroy(array));
    MUST(cuMipmappedArrayCreate(&array, &nothing, 2));
    MUST(cuArray3DCreate_v2(&array, &nothing));
}

/* A multicast object is mapped and released as memory is, but has none. */
OWN static void of_others(void)
{
    const struct multicast wanted = { .devices = 2, .size = PAGE };
    unsigned long long handle;
    device_pointer base;
    MUST(cuMemAddressReserve(&base, PAGE, 0, 0, 0));
    MUST(cuMulticastCreate(&handle, &wanted));
    MUST(cuMemMap(base, PAGE, 0, handle, 0));
    MUST(cuMemUnmap(base, PAGE));
    MUST(cuMemRelease(handle));
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    wait_for_the_test(words[1]);
    MUST(cudaSetDevice(0));
    by_the_runtime();
    by_the_driver();
    of_others();
    print_truth();
    return 0;
}
