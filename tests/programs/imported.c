/* Memory of another process, opened by CUDA IPC: what is open at the end is two allocations, one of them opened twice
 * and closed once. */
#include <sys/wait.h>

#include "truth.h"

enum { MIB = 1 << 20 };

/* cudaIpcMemHandle_t, driver_types.h */
struct ipc_handle {
    char reserved[64];
};

int cudaIpcGetMemHandle(struct ipc_handle *out, void *pointer);
int cudaIpcOpenMemHandle(void **out, struct ipc_handle handle, unsigned flags);
int cudaIpcCloseMemHandle(void *pointer);
int cuIpcOpenMemHandle_v2(device_pointer *out, struct ipc_handle handle, unsigned flags);
int cuIpcCloseMemHandle(device_pointer pointer);

/* Exports two allocations, and lives until the other end of the pipe is closed. */
static void export(int out, int until)
{
    struct ipc_handle handles[2];
    for (int at = 0; at < 2; at++) {
        void *memory;
        MUST(cudaMalloc(&memory, (size_t)(3 + 2 * at) * MIB));
        MUST(cudaIpcGetMemHandle(&handles[at], memory));
    }
    char end;
    if (write(out, handles, sizeof handles) != sizeof handles)
        _exit(4);
    _exit(read(until, &end, 1) != 0);
}

OWN static void import(const struct ipc_handle handles[2])
{
    void *own, *first, *again;
    MUST(cudaMalloc(&own, MIB));
    gain(DEVICE, MIB);
    MUST(cudaIpcOpenMemHandle(&first, handles[0], 1));
    MUST(cudaIpcOpenMemHandle(&again, handles[0], 1));
    MUST(first != again);
    MUST(cudaIpcCloseMemHandle(again));
    device_pointer second;
    MUST(cuIpcOpenMemHandle_v2(&second, handles[1], 1));
    MUST(cuIpcCloseMemHandle(second));
    MUST(cuIpcOpenMemHandle_v2(&second, handles[1], 1));
}

int main(int, char **arguments)
{
    int handles[2], until[2];
    MUST(pipe(handles));
    MUST(pipe(until));
    pid_t exporter = fork();
    MUST(exporter < 0);
    if (exporter == 0) {
        close(until[1]);
        export(handles[1], until[0]);
    }
    wait_for_the_test(arguments[1]);
    struct ipc_handle found[2];
    MUST(read(handles[0], found, sizeof found) != sizeof found);
    import(found);
    print_truth();
    close(until[1]);
    int status;
    MUST(waitpid(exporter, &status, 0) != exporter || status);
    return 0;
}
