//! Infers the purpose of a block without a tensor from the functions that requested it.
//!
//! The rows are PyTorch functions that request memory from the caching allocator without creating a tensor. They were
//! found in the wheel of 2.15.0, as all functions that refer to `c10::cuda::CUDACachingAllocator::allocator`. A block
//! whose functions have no row gets a function name but no purpose.

use std::sync::Arc;

use crate::event::Purpose;

const ALLOCATOR: &str = "libc10";

/// Namespaces of functions that request memory on behalf of their callers: PyTorch's core, whose templates
/// for allocators and smart pointers are instantiated in any library, and the standard library.
const PASSING_ON: [&str; 2] = ["c10::", "std::"];

/// Prefix of operator dispatch functions. Callers of an operator say nothing about the operator's memory.
const OPERATOR: &str = "at::_ops::";

const MAX_CALLERS: usize = 64;

/// Prefixes of functions that request memory, each with the purpose of that memory.
const ROWS: &[(&str, &str)] = &[
    // aten/src/ATen/cuda/CublasHandlePool.cpp@v2.15.0 (`getCurrentCUDABlasHandleWithWorkspace`) and @v2.0.1
    // (`getCurrentCUDABlasHandle`).
    ("at::cuda::getCurrentCUDABlasHandle", "cuBLAS workspace"),
    // aten/src/ATen/cuda/CublasHandlePool.cpp@v2.15.0 (`getCUDABlasLtWorkspace`, which `CublasLtWorkspace` of
    // ATen/cuda/detail/CublasLtUtils.h calls) and CUDABlas.cpp@v2.0.1 (`gemm_and_bias`). Requests through a
    // cuBLAS handle have an inner frame that matches the row above.
    ("at::cuda::getCUDABlasLtWorkspace", "cuBLASLt workspace"),
    ("at::cuda::blas::", "cuBLASLt workspace"),
    // aten/src/ATen/native/cudnn/Conv_v8.cpp@v2.15.0, Conv_v7.cpp@v2.0.1 and MHA.cpp@v2.15.0;
    // aten/src/ATen/native/quantized/cudnn/Conv.cpp and Linear.cpp@v2.15.0.
    ("at::native::run_conv_plan", "cuDNN workspace"),
    ("at::native::run_single_conv", "cuDNN workspace"),
    ("at::native::generate_and_filter_plans", "cuDNN workspace"),
    ("at::native::algorithm_search", "cuDNN workspace"),
    ("at::native::raw_cudnn_convolution", "cuDNN workspace"),
    ("at::native::run_cudnn_SDP", "cuDNN workspace"),
    ("PackedConvWeightCudnn::", "cuDNN workspace"),
    ("PackedLinearWeightCudnn::", "cuDNN workspace"),
    // aten/src/ATen/native/cuda/Resize.cpp@v2.15.0.
    ("at::native::resize_bytes_cuda", "resized storage"),
    // torch/csrc/Storage.cpp@v2.15.0: `torch.UntypedStorage(...)`.
    ("THPStorage_pynew", "storage without a tensor"),
    // torch/csrc/cuda/Module.cpp@v2.15.0.
    (
        "THCPModule_cudaCachingAllocator_raw_alloc",
        "torch.cuda.caching_allocator_alloc",
    ),
    // aten/src/ATen/cuda/cub.cuh@v2.15.0 (`CUB_WRAPPER`).
    ("at::cuda::cub::", "CUB scratch"),
    // aten/src/ATen/cuda/ThrustAllocator.h@v2.15.0.
    ("thrust::", "Thrust scratch"),
    // aten/src/ATen/native/cuda/SortStable.cu@v2.15.0.
    ("at::native::launch_stable_sort_kernel", "sort scratch"),
    // aten/src/ATen/native/cuda/TensorTopK.cu@v2.15.0.
    ("at::native::mbtopk::", "top-k scratch"),
    // aten/src/ATen/native/cuda/Reduce.cuh@v2.15.0.
    ("at::native::gpu_reduce_kernel", "reduction scratch"),
    ("at::native::jitted_gpu_reduce_kernel", "reduction scratch"),
    // aten/src/ATen/native/cuda/Nonzero.cu@v2.15.0.
    ("at::native::nonzero_cuda_out_impl", "nonzero scratch"),
    (
        "at::native::nonzero_static_cuda_out_impl",
        "nonzero scratch",
    ),
    // aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp and SparseCUDABlas.cpp@v2.15.0.
    ("at::native::sparse::impl::cuda::", "cuSPARSE workspace"),
    ("at::native::sparse::cuda::", "cuSPARSE workspace"),
    // aten/src/ATen/native/sparse/cuda/cuSPARSELtOps.cpp@v2.15.0.
    ("at::native::_cslt_", "cuSPARSELt workspace"),
    // aten/src/ATen/native/cuda/linalg/CUDASolver.cpp@v2.15.0.
    ("at::cuda::solver::", "cuSOLVER workspace"),
    // aten/src/ATen/cuda/tunable/GemmCommon.h@v2.15.0: copies of a call's operands, for trial runs of kernels.
    ("at::cuda::tunable::", "TunableOp trial"),
    // torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu@v2.15.0: the addresses of the peers' buffers.
    ("c10d::symmetric_memory::", "symmetric memory's tables"),
    // torch/csrc/inductor/aoti_torch/shim_cuda.cpp@v2.15.0.
    ("aoti_torch_cuda_caching_allocator_raw_alloc", "AOTInductor"),
];

fn what(function: &str) -> Option<&'static str> {
    let row = ROWS.iter().find(|(prefix, _)| function.starts_with(prefix));
    row.map(|(_, what)| *what)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The name without parameters and template arguments, or the offset in the file.
    pub function: Arc<str>,
    pub library: Arc<str>,
}

impl Caller {
    fn purpose(self, what: Option<Arc<str>>) -> Purpose {
        Purpose {
            what,
            function: self.function,
            library: self.library,
        }
    }
}

#[derive(Default)]
pub struct Search {
    innermost: Option<Caller>,
    decided: Option<Purpose>,
    callers: usize,
}

impl Search {
    pub fn goes_on_after(&mut self, caller: Option<Caller>) -> bool {
        let Some(caller) = caller else { return false };
        self.callers += 1;
        let passes_on = caller.library.starts_with(ALLOCATOR)
            || PASSING_ON.iter().any(|it| caller.function.starts_with(it));
        if passes_on {
            return self.callers < MAX_CALLERS;
        }
        if let Some(what) = what(&caller.function) {
            self.decided = Some(caller.purpose(Some(what.into())));
            return false;
        }
        let is_operator = caller.function.starts_with(OPERATOR);
        self.innermost.get_or_insert(caller);
        !is_operator && self.callers < MAX_CALLERS
    }

    /// Returns the result; `None` if the stack has no function outside the allocator.
    pub fn found(self) -> Option<Purpose> {
        self.decided.or_else(|| Some(self.innermost?.purpose(None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result for a stack of functions, innermost first, and the number of functions examined.
    fn look(functions: &[&str]) -> (Option<Purpose>, usize) {
        let mut search = Search::default();
        let mut asked = 0;
        for function in functions {
            asked += 1;
            let (library, function) = function
                .split_once(' ')
                .unwrap_or(("libtorch_cuda.so", function));
            let caller = Caller {
                function: function.into(),
                library: library.into(),
            };
            if !search.goes_on_after(Some(caller)) {
                break;
            }
        }
        (search.found(), asked)
    }

    #[test]
    fn the_innermost_row_decides() {
        let (found, asked) = look(&[
            "libc10_cuda.so +0x1234",
            "libc10_cuda.so c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate",
            "at::cuda::allocateCUDABlasWorkspace",
            "at::cuda::getCurrentCUDABlasHandleWithWorkspace",
            "at::cuda::blas::gemm_internal_cublas",
        ]);
        let found = found.expect("a purpose");
        assert_eq!(
            found.to_string(),
            "cuBLAS workspace (at::cuda::getCurrentCUDABlasHandleWithWorkspace, libtorch_cuda.so)"
        );
        assert_eq!(asked, 4);
    }

    #[test]
    fn an_unlisted_purpose_is_unknown_and_names_the_innermost_function() {
        let (found, asked) = look(&[
            "libc10_cuda.so +0x1234",
            "c10::DeviceArray::DeviceArray",
            "std::function::operator()",
            "at::native::foo",
            "at::native::bar",
            "at::_ops::foo::call",
            "at::native::resize_bytes_cuda",
        ]);
        let found = found.expect("a function");
        assert_eq!(found.what, None, "beyond the operator");
        assert_eq!(
            found.to_string(),
            "requested by at::native::foo (libtorch_cuda.so)"
        );
        assert_eq!(asked, 6);
    }

    #[test]
    fn nobody_is_named_where_only_the_allocator_was_seen() {
        assert_eq!(look(&["libc10_cuda.so +0x1234"]).0, None);
        let mut search = Search::default();
        assert!(!search.goes_on_after(None), "code in no file");
        assert_eq!(search.found(), None);
        let (_, asked) = look(&["libc10_cuda.so +0x1234"; 1000]);
        assert_eq!(asked, MAX_CALLERS);
    }

    #[test]
    fn no_row_hides_another_and_none_is_the_allocators() {
        let functions = || ROWS.iter().map(|(function, _)| function);
        for function in functions() {
            let inside = functions().filter(|other| function.starts_with(**other));
            assert_eq!(inside.count(), 1, "{function}");
            assert!(PASSING_ON.iter().all(|it| !function.starts_with(it)));
        }
    }
}
