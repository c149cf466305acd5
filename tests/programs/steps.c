/*
 * Holds so many MiB of device 0, and takes and frees 2 MiB again and again: `steps MIB`. It prints `step N` after each
 * round, so that one sees that its calls of CUDA return. `steps MIB TITLE FILE` changes its own command line to the title
 * once the file is there, as setproctitle does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cudaMalloc(void **out, size_t size);
int cudaFree(void *memory);

/* The words of a command line lie one behind the other. */
static void set_title(char **arguments, int count, const char *title)
{
    char copy[256];
    snprintf(copy, sizeof copy, "%s", title);
    char *last = arguments[count - 1];
    size_t room = (size_t)(last + strlen(last) - arguments[0]);
    memset(arguments[0], 0, room);
    strncpy(arguments[0], copy, room - 1);
}

int main(int count, char **arguments)
{
    void *held, *more;
    if (count < 2 || cudaMalloc(&held, (size_t)atoi(arguments[1]) << 20) != 0)
        return 1;
    const char *file = count > 3 ? strdup(arguments[3]) : "";
    for (int step = 1;; step++) {
        if (cudaMalloc(&more, 2 << 20) != 0 || cudaFree(more) != 0)
            return 1;
        if (*file && access(file, F_OK) == 0) {
            set_title(arguments, count, arguments[2]);
            file = "";
        }
        printf("step %d\n", step);
        fflush(stdout);
        usleep(10000);
    }
}
