//! Libraries that get device memory from CUDA by themselves, and their purpose for it.

/// Begin of the file name of a library, and the purpose of its memory. The first match counts.
const LIBRARIES: &[(&str, &str)] = &[
    ("libnccl", "NCCL: communicators and their buffers"),
    ("librccl", "RCCL: communicators and their buffers"),
    ("libcublasLt", "cuBLASLt: workspaces"),
    ("libcublas", "cuBLAS: workspaces"),
    ("libcudnn", "cuDNN: workspaces"),
    ("libnvshmem", "NVSHMEM: symmetric heap"),
    ("libcusolver", "cuSOLVER: workspaces"),
    ("libcusparse", "cuSPARSE: workspaces"),
    ("libcufft", "cuFFT: workspaces"),
    ("libcurand", "cuRAND: generators"),
    ("libcufile", "cuFile: buffers"),
    ("libnvjpeg", "nvJPEG: buffers"),
    ("libtriton", "Triton"),
    ("cuda_utils", "Triton"),
    ("libtorch_nvshmem", "NVSHMEM: symmetric heap"),
    ("libtorch_cuda", "PyTorch beside its allocator"),
    ("libc10_cuda", "PyTorch's allocator, in no segment"),
    ("libcupti", "profiler"),
    ("libucs", "UCX"),
    ("libuct", "UCX"),
];

/// Returns the purpose of the memory of a library; `None` for libraries that are not known.
pub fn purpose(library: &str) -> Option<&'static str> {
    let file = library.rsplit('/').next().unwrap_or(library);
    let known = LIBRARIES.iter().find(|(begin, _)| file.starts_with(begin));
    known.map(|(_, purpose)| *purpose)
}

/// Returns true for a library that gets its memory for communicators.
pub fn has_communicators(library: &str) -> bool {
    let file = library.rsplit('/').next().unwrap_or(library);
    ["libnccl", "librccl"]
        .iter()
        .any(|begin| file.starts_with(begin))
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
