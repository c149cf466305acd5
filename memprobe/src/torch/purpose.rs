//! Infers the purpose of a block without a tensor from the functions that requested it.
//!
//! The rows are PyTorch functions that request memory from the caching allocator without creating a tensor.
//! They were found in the wheel of 2.15.0, as all functions that refer to
//! `c10::cuda::CUDACachingAllocator::allocator`. A block whose functions have no row gets a function name but
//! no purpose.

use std::sync::Arc;

use crate::event::Purpose;

/// Prefix of the allocator's libraries.
const ALLOCATOR: &str = "libc10";

/// Namespaces of functions that request memory on behalf of their callers: PyTorch's core, whose templates
/// for allocators and smart pointers are instantiated in any library, and the standard library.
const PASSING_ON: [&str; 2] = ["c10::", "std::"];

/// Prefix of operator dispatch functions. Callers of an operator say nothing about the operator's memory.
const OPERATOR: &str = "at::_ops::";

/// The most callers that are examined.
const MAX_CALLERS: usize = 64;

/// A purpose, and the prefixes of the functions that request memory for it.
struct Row {
    what: &'static str,
    functions: &'static [&'static str],
}

const ROWS: &[Row] = &[
    // aten/src/ATen/cuda/CublasHandlePool.cpp@v2.15.0 (`getCurrentCUDABlasHandleWithWorkspace`) and @v2.0.1
    // (`getCurrentCUDABlasHandle`).
    Row {
        what: "cuBLAS workspace",
        functions: &["at::cuda::getCurrentCUDABlasHandle"],
    },
    // aten/src/ATen/cuda/CublasHandlePool.cpp@v2.15.0 (`getCUDABlasLtWorkspace`, which `CublasLtWorkspace` of
    // ATen/cuda/detail/CublasLtUtils.h calls) and CUDABlas.cpp@v2.0.1 (`gemm_and_bias`). Requests through a
    // cuBLAS handle have an inner frame that matches the row above.
    Row {
        what: "cuBLASLt workspace",
        functions: &["at::cuda::getCUDABlasLtWorkspace", "at::cuda::blas::"],
    },
    // aten/src/ATen/native/cudnn/Conv_v8.cpp@v2.15.0, Conv_v7.cpp@v2.0.1 and MHA.cpp@v2.15.0;
    // aten/src/ATen/native/quantized/cudnn/Conv.cpp and Linear.cpp@v2.15.0.
    Row {
        what: "cuDNN workspace",
        functions: &[
            "at::native::run_conv_plan",
            "at::native::run_single_conv",
            "at::native::generate_and_filter_plans",
            "at::native::algorithm_search",
            "at::native::raw_cudnn_convolution",
            "at::native::run_cudnn_SDP",
            "PackedConvWeightCudnn::",
            "PackedLinearWeightCudnn::",
        ],
    },
    // aten/src/ATen/native/cuda/Resize.cpp@v2.15.0.
    Row {
        what: "resized storage",
        functions: &["at::native::resize_bytes_cuda"],
    },
    // torch/csrc/Storage.cpp@v2.15.0: `torch.UntypedStorage(...)`.
    Row {
        what: "storage without a tensor",
        functions: &["THPStorage_pynew"],
    },
    // torch/csrc/cuda/Module.cpp@v2.15.0.
    Row {
        what: "torch.cuda.caching_allocator_alloc",
        functions: &["THCPModule_cudaCachingAllocator_raw_alloc"],
    },
    // aten/src/ATen/cuda/cub.cuh@v2.15.0 (`CUB_WRAPPER`).
    Row {
        what: "CUB scratch",
        functions: &["at::cuda::cub::"],
    },
    // aten/src/ATen/cuda/ThrustAllocator.h@v2.15.0.
    Row {
        what: "Thrust scratch",
        functions: &["thrust::"],
    },
    // aten/src/ATen/native/cuda/SortStable.cu@v2.15.0.
    Row {
        what: "sort scratch",
        functions: &["at::native::launch_stable_sort_kernel"],
    },
    // aten/src/ATen/native/cuda/TensorTopK.cu@v2.15.0.
    Row {
        what: "top-k scratch",
        functions: &["at::native::mbtopk::"],
    },
    // aten/src/ATen/native/cuda/Reduce.cuh@v2.15.0.
    Row {
        what: "reduction scratch",
        functions: &[
            "at::native::gpu_reduce_kernel",
            "at::native::jitted_gpu_reduce_kernel",
        ],
    },
    // aten/src/ATen/native/cuda/Nonzero.cu@v2.15.0.
    Row {
        what: "nonzero scratch",
        functions: &[
            "at::native::nonzero_cuda_out_impl",
            "at::native::nonzero_static_cuda_out_impl",
        ],
    },
    // aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp and SparseCUDABlas.cpp@v2.15.0.
    Row {
        what: "cuSPARSE workspace",
        functions: &[
            "at::native::sparse::impl::cuda::",
            "at::native::sparse::cuda::",
        ],
    },
    // aten/src/ATen/native/sparse/cuda/cuSPARSELtOps.cpp@v2.15.0.
    Row {
        what: "cuSPARSELt workspace",
        functions: &["at::native::_cslt_"],
    },
    // aten/src/ATen/native/cuda/linalg/CUDASolver.cpp@v2.15.0.
    Row {
        what: "cuSOLVER workspace",
        functions: &["at::cuda::solver::"],
    },
    // aten/src/ATen/cuda/tunable/GemmCommon.h@v2.15.0: copies of a call's operands, for trial runs of
    // kernels.
    Row {
        what: "TunableOp trial",
        functions: &["at::cuda::tunable::"],
    },
    // torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu@v2.15.0: the addresses of the peers'
    // buffers.
    Row {
        what: "symmetric memory's tables",
        functions: &["c10d::symmetric_memory::"],
    },
    // torch/csrc/inductor/aoti_torch/shim_cuda.cpp@v2.15.0.
    Row {
        what: "AOTInductor",
        functions: &["aoti_torch_cuda_caching_allocator_raw_alloc"],
    },
];

/// Returns the known purpose of memory that a function requests.
fn what(function: &str) -> Option<&'static str> {
    let is_of = |row: &&Row| row.functions.iter().any(|it| function.starts_with(it));
    ROWS.iter().find(is_of).map(|row| row.what)
}

/// A calling function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The name without parameters and template arguments, or the offset in the file.
    pub function: Arc<str>,
    /// The file name of its library.
    pub library: Arc<str>,
}

/// A search through the callers of the allocator, from the innermost outwards.
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
            self.decided = Some(Purpose {
                what: Some(what.into()),
                function: caller.function,
                library: caller.library,
            });
            return false;
        }
        let is_operator = caller.function.starts_with(OPERATOR);
        self.innermost.get_or_insert(caller);
        !is_operator && self.callers < MAX_CALLERS
    }

    /// Returns the result; `None` if the stack has no function outside the allocator.
    pub fn found(self) -> Option<Purpose> {
        let unknown = |caller: Caller| Purpose {
            what: None,
            function: caller.function,
            library: caller.library,
        };
        self.decided.or_else(|| self.innermost.map(unknown))
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
        let functions = || ROWS.iter().flat_map(|row| row.functions);
        for function in functions() {
            let inside = functions().filter(|other| function.starts_with(**other));
            assert_eq!(inside.count(), 1, "{function}");
            assert!(PASSING_ON.iter().all(|it| !function.starts_with(it)));
        }
    }
}
