"""Tensors of every element type, shape and make, and those that share memory."""

import warnings

import torch

import tensor_reference

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]

# Not in every release.
NEWER_DTYPES = [
    "complex32",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "uint16",
    "uint32",
    "uint64",
]


class Marked(torch.Tensor):
    """A subclass, as libraries have them."""


class Wrapped(torch.Tensor):
    """A tensor without memory of its own, that holds another one."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(str(function))


def of_every_type():
    held = [torch.zeros(33, 3, dtype=dtype, device="cuda") for dtype in DTYPES]
    for name in NEWER_DTYPES:
        dtype = getattr(torch, name, None)
        if dtype is not None:
            held.append(torch.empty(35, 3, dtype=dtype, device="cuda"))
    return held


def of_every_shape():
    return [
        torch.tensor(1.0, device="cuda"),
        torch.empty(0, device="cuda"),
        torch.empty(4, 0, 7, device="cuda"),
        torch.empty(2, 3, 4, 5, 6, device="cuda"),
        torch.empty(1, 2, 3, 1, 2, 3, device="cuda"),
        torch.empty(*[2] * 12, device="cuda"),
        torch.empty(2, 3, 8, 8, device="cuda").contiguous(memory_format=torch.channels_last),
        torch.empty(6, 40, device="cuda").t(),
        torch.empty(1, device="cuda").expand(1000, 1000),
        torch.empty(700, device="cuda").as_strided((20, 20), (7, 3), 11),
        torch.empty(1 << 20, device="cuda"),
    ]


def that_share():
    base = torch.zeros(64, 64, device="cuda")
    rows = [base[0], base[1:3], base.view(-1), base.t(), base.detach()]
    # The base goes; a view keeps the memory.
    orphan = torch.zeros(500, 500, device="cuda")[3:5]
    other = torch.empty(0, device="cuda").set_(base.untyped_storage(), 64, (32, 2), (2, 1))
    as_bytes = base.view(torch.uint8)
    grown = torch.empty(10, device="cuda")
    grown.resize_(5000)
    shrunk = torch.empty(5000, device="cuda")
    shrunk.resize_(10)
    emptied = torch.empty(3000, device="cuda")
    emptied.untyped_storage().resize_(0)
    return base, rows, orphan, other, as_bytes, grown, shrunk, emptied


def of_other_makes():
    """Sparse, quantized and other tensors without a plain piece of memory."""
    held = [
        torch.empty(5, 6, device="meta"),
        torch.empty(3, 3).as_subclass(Marked),
        torch.zeros(3, 4, device="cuda").as_subclass(Marked),
        torch.nn.Parameter(torch.zeros(3, 5, device="cuda"), requires_grad=False),
        Wrapped(torch.zeros(3, 6, device="cuda")),
    ]
    held.append(
        attempt(
            lambda: torch.sparse_coo_tensor(
                torch.zeros(2, 4, dtype=torch.int64, device="cuda"),
                torch.zeros(4, device="cuda"),
                (50, 60),
                check_invariants=False,
            )
        )
    )
    held.append(
        attempt(
            lambda: torch.sparse_csr_tensor(
                torch.zeros(4, dtype=torch.int64, device="cuda"),
                torch.zeros(2, dtype=torch.int64, device="cuda"),
                torch.zeros(2, device="cuda"),
                (3, 70),
                check_invariants=False,
            )
        )
    )
    held.append(
        attempt(lambda: torch._empty_affine_quantized((5, 7), scale=0.1, zero_point=3, dtype=torch.quint8))
    )
    held.append(
        attempt(
            lambda: torch._empty_affine_quantized(
                (5, 8), scale=0.1, zero_point=3, dtype=torch.qint8, device="cuda"
            )
        )
    )
    held.append(attempt(lambda: torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)], device="cuda")))
    held.append(attempt(lambda: torch._efficientzerotensor((9, 9), device="cuda")))
    return held


def on_the_cpu():
    import array

    held = [torch.empty(1000, 100), torch.empty(10, dtype=torch.int64), torch.tensor(2)]
    held.append(torch.frombuffer(array.array("d", [0.0] * 77), dtype=torch.float64))
    held.append(torch.empty(333, 3, pin_memory=True))
    held.append(torch.empty(55, 5).share_memory_())
    try:
        import numpy
    except ImportError:
        return held
    held.append(torch.from_numpy(numpy.zeros((44, 4), dtype=numpy.float32)))
    return held


def attempt(make):
    """What `make` gives, or why this PyTorch does not make it."""
    try:
        return make()
    except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
        return str(error)


def main(points, options):
    warnings.filterwarnings("ignore")
    types = of_every_type()
    points.at("types")
    shapes = of_every_shape()
    points.at("shapes")
    shared = that_share()
    points.at("shared")
    del types, shapes, shared
    makes = of_other_makes()
    points.at("makes")
    makes.append(on_the_cpu())
    points.at("cpu")


if __name__ == "__main__":
    tensor_reference.run(main)
