//! Imports of PyTorch's shared libraries from NVIDIA's, read from the installed wheel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::elf;
use object::read::elf::{FileHeader, Sym};
use object::{Endianness, ReadCache};

/// The libraries of NVIDIA that PyTorch links, without `lib` and `.so.N`.
const NVIDIA: [&str; 17] = [
    "cuda",
    "cudart",
    "cublas",
    "cublasLt",
    "cudnn",
    "cufft",
    "cufile",
    "cupti",
    "curand",
    "cusolver",
    "cusparse",
    "cusparseLt",
    "nccl",
    "nvJitLink",
    "nvToolsExt",
    "nvrtc",
    "nvshmem_host",
];

/// Libraries of symbols without a version, by prefix; the first match counts.
const PREFIXES: [(&str, &str); 6] = [
    ("cuFile", "cufile"),
    ("cusparseLt", "cusparseLt"),
    ("nccl", "nccl"),
    ("nvtx", "nvToolsExt"),
    ("curand", "curand"),
    ("cu", "cuda"),
];

/// One library that PyTorch links.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportedLibrary {
    /// The version that PyTorch requires its symbols to carry. The loader refuses a wrong one.
    pub version_node: Option<String>,
    /// The functions that PyTorch requires it to have.
    pub functions: BTreeSet<String>,
}

/// Everything PyTorch imports of NVIDIA, by file name (`libcudart.so.13`).
#[derive(Debug, Default)]
pub struct Imports {
    /// The libraries by file name.
    pub libraries: BTreeMap<String, ImportedLibrary>,
    /// The loader's search path (`DT_RPATH` of libc10_cuda.so), made absolute.
    pub search_path: Vec<PathBuf>,
}

/// Imports of one shared library.
#[derive(Debug, Default, PartialEq, Eq)]
struct Linkage {
    needed: Vec<String>,
    run_path: Option<String>,
    /// Undefined symbols with the version they ask for.
    undefined: Vec<(String, Option<String>)>,
}

impl Imports {
    /// Reads all shared libraries of a folder (`torch/lib`).
    pub fn read(folder: &Path) -> Result<Self> {
        let mut imports = Self::default();
        for entry in
            fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
        {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !path.is_file() || !name.contains(".so") {
                continue;
            }
            let linkage =
                Linkage::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            if name == "libc10_cuda.so" {
                imports.search_path = search_path(&linkage, folder);
            }
            imports.add(linkage)?;
        }
        if imports.libraries.is_empty() || imports.search_path.is_empty() {
            bail!(
                "the PyTorch in {} is not built for CUDA: it links no library of NVIDIA's",
                folder.display()
            );
        }
        Ok(imports)
    }

    /// The major version of CUDA, from the name of the runtime.
    pub fn cuda_major(&self) -> Result<u32> {
        self.libraries
            .keys()
            .find_map(|name| {
                name.strip_prefix("libcudart.so.")?
                    .split('.')
                    .next()?
                    .parse()
                    .ok()
            })
            .context("PyTorch links no libcudart.so.N")
    }

    fn add(&mut self, linkage: Linkage) -> Result<()> {
        let linked: Vec<&String> = linkage
            .needed
            .iter()
            .filter(|name| is_nvidia(name))
            .collect();
        for name in &linked {
            self.libraries.entry((*name).clone()).or_default();
        }
        for (function, version) in &linkage.undefined {
            if let Some(owner) = owner(function, version.as_deref(), &linked) {
                let library = self.libraries.entry(owner.clone()).or_default();
                library.functions.insert(function.clone());
                if version.is_some() {
                    if library.version_node.is_some() && library.version_node != *version {
                        bail!(
                            "PyTorch asks for two versions of {owner}, which cannot be simulated"
                        );
                    }
                    library.version_node.clone_from(version);
                }
            }
        }
        Ok(())
    }
}

/// `cudart` of `libcudart.so.13`.
pub fn base_name(file: &str) -> Option<&str> {
    Some(file.strip_prefix("lib")?.split_once(".so")?.0)
}

fn is_nvidia(file: &str) -> bool {
    base_name(file).is_some_and(|base| NVIDIA.contains(&base))
}

/// Returns the linked library that defines a symbol. NVIDIA names the version node after the
/// file; nvshmem has its own, and some libraries have none.
fn owner(function: &str, version: Option<&str>, linked: &[&String]) -> Option<String> {
    let base = match version {
        Some("NVSHMEM") => "nvshmem_host",
        Some(version) => return is_nvidia(version).then(|| version.to_owned()),
        None => {
            PREFIXES
                .iter()
                .find(|(prefix, _)| function.starts_with(prefix))?
                .1
        }
    };
    linked
        .iter()
        .find(|name| base_name(name) == Some(base))
        .map(|name| (*name).clone())
}

fn search_path(linkage: &Linkage, folder: &Path) -> Vec<PathBuf> {
    let run_path = linkage.run_path.as_deref().unwrap_or_default();
    run_path
        .split(':')
        .filter_map(|entry| {
            Some(folder.join(entry.strip_prefix("$ORIGIN")?.trim_start_matches('/')))
        })
        .collect()
}

impl Linkage {
    /// Reads a file piece by piece: the largest has half a gigabyte.
    fn read(path: &Path) -> Result<Self> {
        let cache = ReadCache::new(File::open(path)?);
        let data = &cache;
        let header = elf::FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, data)?;
        let mut linkage = Self::default();

        let dynamic = sections.dynamic_table(endian, data)?;
        for entry in dynamic.iter() {
            match entry.tag {
                elf::DT_NEEDED => linkage.needed.push(text(dynamic.string(entry)?)),
                elf::DT_RPATH | elf::DT_RUNPATH => {
                    linkage.run_path = Some(text(dynamic.string(entry)?));
                }
                _ => {}
            }
        }

        let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
        let versions = sections.versions(endian, data)?;
        for (index, symbol) in symbols.enumerate() {
            if !symbol.is_undefined(endian) {
                continue;
            }
            let version = match &versions {
                Some(table) => table.version(table.version_index(endian, index).index())?,
                None => None,
            };
            linkage.undefined.push((
                text(symbol.name(endian, symbols.strings())?),
                version.map(|version| text(version.name())),
            ));
        }
        Ok(linkage)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linkage(needed: &[&str], undefined: &[(&str, Option<&str>)]) -> Linkage {
        Linkage {
            needed: needed.iter().map(|&name| name.to_owned()).collect(),
            run_path: Some("$ORIGIN/../../nvidia/cu13/lib:$ORIGIN".to_owned()),
            undefined: undefined
                .iter()
                .map(|(name, version)| ((*name).to_owned(), version.map(str::to_owned)))
                .collect(),
        }
    }

    #[test]
    fn functions_go_to_the_library_that_their_version_names() {
        let mut imports = Imports::default();
        imports
            .add(linkage(
                &["libcudart.so.13", "libc.so.6"],
                &[
                    ("cudaMalloc", Some("libcudart.so.13")),
                    ("malloc", Some("GLIBC_2.2.5")),
                ],
            ))
            .unwrap();
        let runtime = &imports.libraries["libcudart.so.13"];
        assert_eq!(imports.libraries.len(), 1);
        assert_eq!(runtime.version_node.as_deref(), Some("libcudart.so.13"));
        assert!(runtime.functions.contains("cudaMalloc"));
        assert_eq!(imports.cuda_major().unwrap(), 13);
    }

    #[test]
    fn functions_without_a_version_go_by_their_prefix() {
        let mut imports = Imports::default();
        imports
            .add(linkage(
                &["libnccl.so.2", "libcuda.so.1", "libcufile.so.0"],
                &[
                    ("ncclAllReduce", None),
                    ("cuFileRead", None),
                    ("cuLaunchKernel", None),
                    ("curious", None),
                ],
            ))
            .unwrap();
        assert!(
            imports.libraries["libnccl.so.2"]
                .functions
                .contains("ncclAllReduce")
        );
        assert!(
            imports.libraries["libcufile.so.0"]
                .functions
                .contains("cuFileRead")
        );
        assert!(
            imports.libraries["libcuda.so.1"]
                .functions
                .contains("cuLaunchKernel")
        );
    }

    #[test]
    fn a_function_is_no_import_where_its_library_is_not_linked() {
        let mut imports = Imports::default();
        imports
            .add(linkage(&[], &[("ncclAllReduce", None)]))
            .unwrap();
        assert!(imports.libraries.is_empty());
    }

    #[test]
    fn two_versions_of_one_library_are_refused() {
        let mut imports = Imports::default();
        let error = imports
            .add(linkage(
                &["libnvshmem_host.so.3"],
                &[
                    ("nvshmem_free", Some("NVSHMEM")),
                    ("x", Some("libnvshmem_host.so.3")),
                ],
            ))
            .unwrap_err();
        assert!(error.to_string().contains("two versions"), "{error}");
    }

    #[test]
    fn the_search_path_is_relative_to_the_library() {
        let path = search_path(&linkage(&[], &[]), Path::new("/v/torch/lib"));
        assert_eq!(path[0], Path::new("/v/torch/lib/../../nvidia/cu13/lib"));
    }

    #[test]
    fn the_linkage_of_a_real_library_is_read() {
        let own = std::env::current_exe().unwrap();
        let linkage = Linkage::read(&own).unwrap();
        assert!(
            linkage
                .needed
                .iter()
                .any(|name| name.starts_with("libc.so")),
            "{linkage:?}"
        );
        assert!(linkage.undefined.iter().any(|(name, version)| {
            name == "write" && version.as_deref().is_some_and(|v| v.starts_with("GLIBC_"))
        }));
    }
}
