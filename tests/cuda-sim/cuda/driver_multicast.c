/* Driver API: multicast objects. One is mapped as memory is, so some stands for it. */
#include "bodies.h"
#include "simulation.h"

int cuMemCreate(void **out, size_t size, const struct allocation_properties *properties,
                unsigned long long flags) BODY(cuMemCreate);

/* CUmulticastObjectProp, cuda.h */
struct multicast_properties {
    unsigned devices;
    size_t size;
    unsigned long long handle_types, flags;
};

ENTRY(int, cuMulticastCreate, void **out, const struct multicast_properties *wanted)
{
    const struct allocation_properties here = { .type = 1, .location_type = LOCATION_DEVICE };
    return cuMemCreate(out, wanted->size, &here, 0);
}
