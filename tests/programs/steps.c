/*
 * Holds so many MiB of device 0, and takes and frees 2 MiB again and again: `steps MIB`. It prints `step N` after each
 * round, so that one sees that its calls of CUDA return.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cudaMalloc(void **out, size_t size);
int cudaFree(void *memory);

int main(int count, char **arguments)
{
    void *held, *more;
    if (count < 2 || cudaMalloc(&held, (size_t)atoi(arguments[1]) << 20) != 0)
        return 1;
    for (int step = 1;; step++) {
        if (cudaMalloc(&more, 2 << 20) != 0 || cudaFree(more) != 0)
            return 1;
        printf("step %d\n", step);
        fflush(stdout);
        usleep(10000);
    }
}
