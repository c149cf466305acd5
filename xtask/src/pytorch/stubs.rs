//! Generated C: a function for everything PyTorch imports, which the hand-written ones override.

use std::fmt::Write;

use super::imports::{ImportedLibrary, base_name};

/// Returns the result of a generated function. Functions of a library whose results PyTorch uses
/// unchecked succeed. The others fail with the library's own "not supported": a success without a
/// result would leave PyTorch with garbage.
fn result_of(base: &str) -> u32 {
    match base {
        "cublas" | "cublasLt" | "cudnn" | "cupti" | "nccl" | "nvrtc" => 0,
        "cuda" | "cudart" => 801,        // CUDA_ERROR_NOT_SUPPORTED
        "cufft" => 16,                   // CUFFT_NOT_SUPPORTED
        "cufile" => 5001,                // CU_FILE_DRIVER_NOT_INITIALIZED
        "cusolver" => 9,                 // CUSOLVER_STATUS_NOT_SUPPORTED
        "cusparse" | "cusparseLt" => 10, // CUSPARSE_STATUS_NOT_SUPPORTED
        _ => 1,
    }
}

/// The C source of a library's generated functions. They are weak: a hand-written function of the
/// same name takes their place when the library is linked.
pub fn source(file: &str, library: &ImportedLibrary) -> String {
    let base = base_name(file).unwrap_or(file);
    let mut source = format!(
        "/* Generated from what PyTorch imports of {file}. */\n\
         #define STUB_LIBRARY \"{file}\"\n\
         #define STUB_RESULT {}\n\
         #include \"stub.h\"\n\n",
        result_of(base)
    );
    for function in library.functions.iter().filter(|name| is_c_name(name)) {
        writeln!(source, "STUB({function})").expect("writing to a string does not fail");
    }
    source
}

/// The linker's version script, where PyTorch asks for a version.
pub fn version_script(library: &ImportedLibrary) -> Option<String> {
    let node = library.version_node.as_deref()?;
    Some(format!("{node} {{ global: *; }};\n"))
}

fn is_c_name(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(functions: &[&str], node: Option<&str>) -> ImportedLibrary {
        ImportedLibrary {
            version_node: node.map(str::to_owned),
            functions: functions.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn every_import_gets_a_function() {
        let source = source(
            "libcufft.so.12",
            &library(&["cufftExec", "cufftPlan"], None),
        );
        assert!(source.contains("#define STUB_RESULT 16"), "{source}");
        assert!(
            source.ends_with("STUB(cufftExec)\nSTUB(cufftPlan)\n"),
            "{source}"
        );
    }

    #[test]
    fn a_name_that_is_not_c_is_left_out() {
        let source = source("libcufft.so.12", &library(&["a)evil("], None));
        assert!(!source.contains("evil"), "{source}");
    }

    #[test]
    fn a_version_node_becomes_a_version_script() {
        let script = version_script(&library(&[], Some("libcufft.so.12")));
        assert_eq!(script.unwrap(), "libcufft.so.12 { global: *; };\n");
        assert_eq!(version_script(&library(&[], None)), None);
    }
}
