/* NCCL: every rank keeps what it has. Names are those of nccl.h. */
#include <stdlib.h>
#include <string.h>

#include "simulation.h"

/* ncclUniqueId */
struct unique_id {
    char bytes[128];
};

struct communicator {
    int size;
    int rank;
};

static int create(struct communicator **out, int size, int rank)
{
    *out = malloc(sizeof **out);
    if (!*out)
        abort();
    **out = (struct communicator){ size, rank };
    return 0;
}

EXPORT int ncclGetVersion(int *version)
{
    *version = 23007;
    return 0;
}

EXPORT int ncclGetUniqueId(struct unique_id *id)
{
    memset(id, 7, sizeof *id);
    return 0;
}

EXPORT int ncclCommInitRank(struct communicator **out, int size, struct unique_id, int rank)
{
    return create(out, size, rank);
}

EXPORT int ncclCommInitRankConfig(struct communicator **out, int size, struct unique_id, int rank,
                                  void *)
{
    return create(out, size, rank);
}

EXPORT int ncclCommInitRankScalable(struct communicator **out, int size, int rank, int,
                                    struct unique_id *, void *)
{
    return create(out, size, rank);
}

EXPORT int ncclCommInitAll(struct communicator **out, int size, const int *)
{
    for (int rank = 0; rank < size; rank++)
        create(&out[rank], size, rank);
    return 0;
}

EXPORT int ncclCommSplit(struct communicator *parent, int, int, struct communicator **out, void *)
{
    return create(out, parent->size, parent->rank);
}

EXPORT int ncclCommDestroy(struct communicator *communicator)
{
    free(communicator);
    return 0;
}

EXPORT int ncclCommAbort(struct communicator *communicator)
{
    free(communicator);
    return 0;
}

EXPORT int ncclCommCount(const struct communicator *communicator, int *count)
{
    *count = communicator->size;
    return 0;
}

EXPORT int ncclCommUserRank(const struct communicator *communicator, int *rank)
{
    *rank = communicator->rank;
    return 0;
}

EXPORT int ncclCommGetAsyncError(struct communicator *, int *error)
{
    *error = 0;
    return 0;
}

EXPORT const char *ncclGetErrorString(int)
{
    return "result of the simulated NCCL";
}

EXPORT const char *ncclGetLastError(void *)
{
    return "";
}

EXPORT int ncclMemAlloc(void **out, size_t)
{
    *out = NULL;
    return 3; /* ncclInternalError */
}

/* ---- collectives */

/* Bytes of each ncclDataType_t. */
static size_t element_bytes(int type)
{
    static const unsigned char sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
    return type >= 0 && type < (int)sizeof sizes ? sizes[type] : 4;
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int,
                         struct communicator *, void *)
{
    sim_copy(to, from, count * element_bytes(type));
    return 0;
}

EXPORT int ncclAllGather(const void *from, void *to, size_t count, int type,
                         const struct communicator *communicator, void *)
{
    size_t size = count * element_bytes(type);
    for (int rank = 0; rank < communicator->size; rank++)
        sim_copy((char *)to + (size_t)rank * size, from, size);
    return 0;
}

EXPORT int ncclReduceScatter(const void *from, void *to, size_t count, int type, int,
                             const struct communicator *communicator, void *)
{
    size_t size = count * element_bytes(type);
    sim_copy(to, (const char *)from + (size_t)communicator->rank * size, size);
    return 0;
}

EXPORT int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                         const struct communicator *communicator, void *)
{
    if (communicator->rank == root)
        sim_copy(to, from, count * element_bytes(type));
    return 0;
}
