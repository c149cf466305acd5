//! Libraries that get device memory from CUDA by themselves, and their purpose for it.

/// Begin of the file name of a library, and the purpose of its memory. The first match counts.
const LIBRARIES: &[(&str, &str)] = &[
    ("libnccl", "NCCL: communicators and their buffers"),
    ("librccl", "RCCL: communicators and their buffers"),
    ("libcublasLt", "cuBLASLt: workspaces"),
    ("libcublas", "cuBLAS: workspaces"),
    ("libcudnn", "cuDNN: workspaces"),
    ("libnvshmem", "NVSHMEM: symmetric heap"),
    ("nvshmem_", "NVSHMEM: symmetric heap"),
    ("libcusolver", "cuSOLVER: workspaces"),
    ("libcusparse", "cuSPARSE: workspaces"),
    ("libcufft", "cuFFT: workspaces"),
    ("libcurand", "cuRAND: generators"),
    ("libcufile", "cuFile: buffers"),
    ("libnvjpeg", "nvJPEG: buffers"),
    ("libtriton", "Triton"),
    ("cuda_utils.", "Triton"),
    ("__triton_launcher", "Triton"),
    ("libtorch_nvshmem", "NVSHMEM: symmetric heap"),
    ("libtorch_cuda", "PyTorch beside its allocator"),
    ("libc10_cuda", "PyTorch's allocator, in no segment"),
    ("libcupti", "CUPTI: profiler"),
    ("libucs", "UCX"),
    ("libuct", "UCX"),
];

/// Files that a library loads at its first use. cuDNN 9 opens its parts with `dlopen` (tried with 9.28: `cudnnCreate` opens
/// `libcudnn_graph`); the linker needs `libcudnn.so.9` alone. NVSHMEM opens its bootstrap and transports as it starts, UCX
/// its transports as it reads its settings (tried with 1.22), that for CUDA where there is a driver.
const PARTS: &[&str] = &["libcudnn_", "nvshmem_", "libuct_cuda"];

/// Modules that Triton compiles for its driver and for each signature of a kernel.
const COMPILED: &[&str] = &["cuda_utils.", "__triton_launcher"];

/// PyTorch's own libraries, which every process with PyTorch has.
const OF_PYTORCH: &[&str] = &["libtorch_cuda", "libc10_cuda"];

/// Returns the purpose of the memory of a library; `None` for libraries that are not known.
pub fn purpose(library: &str) -> Option<&'static str> {
    let file = file_name(library);
    let known = LIBRARIES.iter().find(|(begin, _)| file.starts_with(begin));
    known.map(|(_, purpose)| *purpose)
}

/// Returns the name of a known library that is no part of PyTorch, such as `NCCL`.
pub fn family(library: &str) -> Option<&'static str> {
    let purpose = purpose(library).filter(|_| !begins_with(library, OF_PYTORCH))?;
    purpose.split(':').next()
}

/// Returns true for a file that its library loads at its first use.
pub fn is_part(library: &str) -> bool {
    begins_with(library, PARTS)
}

/// Returns true for a module that a library compiles for the program.
pub fn is_compiled(library: &str) -> bool {
    begins_with(library, COMPILED)
}

/// Returns true for a library that gets its memory for communicators.
pub fn has_communicators(library: &str) -> bool {
    begins_with(library, &["libnccl", "librccl"])
}

fn begins_with(library: &str, begins: &[&str]) -> bool {
    let file = file_name(library);
    begins.iter().any(|begin| file.starts_with(begin))
}

fn file_name(library: &str) -> &str {
    library.rsplit('/').next().unwrap_or(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_and_rccl_have_communicators() {
        assert!(has_communicators("/usr/lib/libnccl.so.2"));
        assert!(has_communicators("librccl.so.1"));
        assert!(!has_communicators("/usr/lib/libcublas.so.13"));
        assert!(!has_communicators("/home/me/libnccl/train"));
    }

    #[test]
    fn a_family_has_its_parts_and_pytorch_is_none() {
        assert_eq!(family("/v/libcudnn.so.9"), Some("cuDNN"));
        assert_eq!(family("/v/libcudnn_graph.so.9"), Some("cuDNN"));
        assert_eq!(family("/v/nvshmem_bootstrap_uid.so.3"), Some("NVSHMEM"));
        assert_eq!(family("/v/torch/lib/libtorch_cuda.so"), None);
        assert_eq!(family("/home/me/_C.so"), None);
        assert!(is_part("/v/libcudnn_graph.so.9") && !is_part("/v/libcudnn.so.9"));
        assert!(is_compiled("/c/cuda_utils.cpython-313-x86_64-linux-gnu.so"));
        assert!(!is_compiled("/home/me/cuda_utils_extra.so"));
    }

    #[test]
    fn a_library_is_known_by_its_file_name() {
        assert_eq!(
            purpose("/usr/lib/libnccl.so.2"),
            Some("NCCL: communicators and their buffers")
        );
        assert_eq!(
            purpose("/opt/libcublasLt.so.13"),
            Some("cuBLASLt: workspaces")
        );
        assert_eq!(purpose("libcublas.so.13"), Some("cuBLAS: workspaces"));
        assert_eq!(purpose("/home/me/libnccl/train"), None);
        assert_eq!(purpose("_C.cpython-313-x86_64-linux-gnu.so"), None);
    }
}
