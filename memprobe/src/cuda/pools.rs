//! Allocators that get a large block from CUDA and divide it themselves, by the functions and libraries that call CUDA.
//!
//! The calls show the outer block alone. Its name is inferred from the stack, and views say so. The prefixes are symbols
//! of the libraries' public headers and sources, without a tag: a release that renames one gets no name here.

/// Prefixes of functions of an allocator, each with its name.
const FUNCTIONS: &[(&str, &str)] = &[
    // rmm: mr/pool_memory_resource.hpp, arena_memory_resource.hpp, binning_memory_resource.hpp,
    // fixed_size_memory_resource.hpp, detail/stream_ordered_memory_resource.hpp, detail/arena.hpp.
    ("rmm::mr::pool_memory_resource", "RMM pool"),
    ("rmm::mr::arena_memory_resource", "RMM arena"),
    ("rmm::mr::binning_memory_resource", "RMM bins"),
    ("rmm::mr::fixed_size_memory_resource", "RMM fixed-size pool"),
    (
        "rmm::mr::detail::stream_ordered_memory_resource",
        "RMM pool",
    ),
    ("rmm::mr::detail::arena::", "RMM arena"),
    // xla/tsl/framework/bfc_allocator.cc; tensorflow/core/common_runtime/bfc_allocator.cc up to 2.9.
    ("tsl::BFCAllocator", "XLA BFC pool"),
    ("tensorflow::BFCAllocator", "TensorFlow BFC pool"),
    // xla/stream_executor/gpu/gpu_cudamallocasync_allocator.h and, up to 2.12,
    // tensorflow/core/common_runtime/gpu/gpu_cudamallocasync_allocator.h.
    (
        "stream_executor::GpuCudaMallocAsyncAllocator",
        "XLA async pool",
    ),
    (
        "tensorflow::GpuCudaMallocAsyncAllocator",
        "TensorFlow async pool",
    ),
    // cupy/cuda/memory.pyx (`SingleDeviceMemoryPool`), as Cython names it.
    (
        "__pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool",
        "CuPy memory pool",
    ),
];

/// Parts of a library's path, each with its allocator. They decide if no function does: the wheels have no symbols of
/// their own functions. A program can turn these pools off.
const LIBRARIES: &[(&str, &str)] = &[
    // cupy_backends/cuda/api/runtime.pyx (`malloc`), which the pool and the program call.
    (
        "/cupy_backends/cuda/api/runtime.",
        "CuPy's allocator, a pool by default",
    ),
    ("/cupy/cuda/memory.", "CuPy's allocator, a pool by default"),
    ("/xla_cuda_plugin.so", "XLA's allocator, a pool by default"),
    (
        "/jaxlib/xla_extension.so",
        "XLA's allocator, a pool by default",
    ),
    (
        "/jaxlib/libjax_common.so",
        "XLA's allocator, a pool by default",
    ),
    // onnxruntime: core/providers/cuda/cuda_provider_options.h (`gpu_mem_limit`), core/framework/bfc_arena.h.
    (
        "/libonnxruntime_providers_cuda.so",
        "ONNX Runtime, a pool by default",
    ),
    (
        "/libtensorflow_framework.so",
        "TensorFlow's allocator, a pool by default",
    ),
    (
        "/libtensorflow_cc.so",
        "TensorFlow's allocator, a pool by default",
    ),
];

/// Returns the name of the allocator on a stack of native functions and their libraries, innermost first. The functions
/// decide before the libraries.
pub fn pool_of<'a, S>(stack: S) -> Option<&'static str>
where
    S: IntoIterator<Item = (&'a str, Option<&'a str>)>,
    S::IntoIter: Clone,
{
    let stack = stack.into_iter();
    let functions = stack.clone().filter_map(|(function, _)| {
        let row = FUNCTIONS
            .iter()
            .find(|(prefix, _)| function.starts_with(prefix));
        row.map(|(_, name)| *name)
    });
    let libraries = stack.filter_map(|(_, library)| {
        let row = LIBRARIES
            .iter()
            .find(|(part, _)| library.is_some_and(|it| it.contains(part)));
        row.map(|(_, name)| *name)
    });
    functions.chain(libraries).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_decides_before_a_library() {
        let rmm = "rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>::expand_pool";
        let direct = (
            "rmm::mr::cuda_memory_resource::do_allocate",
            Some("/app/libcudf.so"),
        );
        assert_eq!(
            pool_of([direct, (rmm, Some("/app/libcudf.so"))]),
            Some("RMM pool")
        );
        assert_eq!(pool_of([direct]), None, "no pool is on the stack");
        let jax = "/site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so";
        let by_library = Some("XLA's allocator, a pool by default");
        assert_eq!(pool_of([("", Some(jax))]), by_library);
        let mixed = [("cuMemAlloc", Some(jax)), (rmm, None)];
        assert_eq!(pool_of(mixed), Some("RMM pool"));
        assert_eq!(pool_of([("main", Some("/usr/bin/pools"))]), None);
    }

    #[test]
    fn no_prefix_hides_another() {
        for (prefix, _) in FUNCTIONS {
            let same = FUNCTIONS
                .iter()
                .filter(|(other, _)| prefix.starts_with(other));
            assert_eq!(same.count(), 1, "{prefix}");
        }
    }
}
