/*
 * Holds so many MiB of the current device until it is killed: `hold MIB`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cudaMalloc(void **out, size_t size);

int main(int count, char **arguments)
{
    void *held;
    if (count != 2 || cudaMalloc(&held, (size_t)atoi(arguments[1]) << 20) != 0)
        return 1;
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
