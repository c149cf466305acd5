//! The entries of the simulated driver's functions have both forms of NVIDIA's libcuda.

use std::path::{Path, PathBuf};
use std::process::Command;

use memprobe_tests::cuda_programs::{Cuda, Cudart, Entries};
use memprobe_tests::pytorch::{PyTorch, succeed};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSegment, ObjectSymbol, RelocationTarget};

/// A built driver: the file, and the form that its entries are to have.
type Driver = (PathBuf, Entries);

/// The drivers of both forms: those for C programs, and those that PyTorch loads where there is one.
struct Drivers {
    built: Vec<Cuda>,
    installed: Vec<Driver>,
}

impl Drivers {
    fn every_one() -> Self {
        let libraries = std::env::var_os(memprobe_tests::pytorch::TEST_PYTHON)
            .and_then(|_| PyTorch::simulated())
            .and_then(|pytorch| Some((pytorch.simulated_libraries()?, pytorch)));
        let installed = libraries.into_iter().flat_map(|(folder, pytorch)| {
            Entries::ALL.map(|entries| {
                let preloaded = pytorch.preloaded_driver(entries);
                let driver = preloaded.unwrap_or_else(|| folder.join("libcuda.so.1"));
                (driver, entries)
            })
        });
        Self {
            installed: installed.collect(),
            built: Cuda::build_each().collect(),
        }
    }

    fn files(&self) -> impl Iterator<Item = Driver> {
        let built = self.built.iter();
        let built = built.map(|cuda| (cuda.file("libcuda.so.1"), cuda.entries()));
        built.chain(self.installed.iter().cloned())
    }
}

/// An exported function of the driver: its name and its code.
struct Entry {
    name: String,
    code: Vec<u8>,
}

fn is_driver_function(name: &str) -> bool {
    let rest = name.strip_prefix("cu");
    rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
}

/// Every exported function of the driver.
fn entries_of(file: &Path) -> Vec<Entry> {
    let bytes = std::fs::read(file).expect("a library");
    let elf: ElfFile64<'_> = ElfFile64::parse(bytes.as_slice()).expect("an ELF file");
    let code = |address, size| {
        let mut segments = elf.segments();
        let found = segments.find_map(|segment| segment.data_range(address, size).ok()?);
        found.expect("code").to_vec()
    };
    let exported = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition());
    let functions = exported.filter_map(|symbol| {
        let name = symbol.name().ok().filter(|name| is_driver_function(name))?;
        Some(Entry {
            name: name.to_owned(),
            code: code(symbol.address(), symbol.size()),
        })
    });
    functions.collect()
}

#[test]
#[cfg(target_arch = "x86_64")]
fn every_exported_function_begins_in_the_form_of_its_driver() {
    for (file, form) in Drivers::every_one().files() {
        let entries = entries_of(&file);
        assert!(entries.len() >= 80, "{}", entries.len());
        for Entry { name, code } in entries {
            let code = code.as_slice();
            let right = match form {
                // cmp imm32, disp32(%rip); a conditional jump of 2 bytes; jmp rel32.
                Entries::Trampolines => {
                    code.len() == 30
                        && code[..2] == [0x81, 0x3d]
                        && code[10] & 0xf0 == 0x70
                        && code[12] == 0xe9
                }
                // push %rbp; mov %rsp, %rbp.
                Entries::Push => code[..4] == [0x55, 0x48, 0x89, 0xe5],
            };
            assert!(right, "{name} of {}: {code:02x?}", file.display());
        }
    }
}

/// A call of an exported function from within the library would need such a relocation.
#[test]
fn no_function_of_the_driver_enters_another() {
    for (file, _) in Drivers::every_one().files() {
        let bytes = std::fs::read(&file).expect("a library");
        let elf: ElfFile64<'_> = ElfFile64::parse(bytes.as_slice()).expect("an ELF file");
        let mut seen = 0;
        for (_, relocation) in elf.dynamic_relocations().expect("dynamic relocations") {
            let RelocationTarget::Symbol(index) = relocation.target() else {
                continue;
            };
            let table = elf.dynamic_symbol_table().expect("a table of symbols");
            let symbol = object::ObjectSymbolTable::symbol_by_index(&table, index);
            let symbol = symbol.expect("the relocation's symbol");
            let name = symbol.name().expect("a name");
            assert!(
                !is_driver_function(name),
                "{} enters {name}",
                file.display()
            );
            seen += 1;
        }
        assert!(seen > 10, "its calls of the C library are relocations");
    }
}

#[test]
fn looking_a_function_up_gives_the_exported_one() {
    let drivers = Drivers::every_one();
    let program = drivers.built[0].program("entry_points", Cudart::Dynamic, &[]);
    for (file, _) in drivers.files() {
        let entries = entries_of(&file);
        let count = entries.len();
        let output = succeed(
            Command::new(&program)
                .args(entries.into_iter().map(|entry| entry.name))
                .env("LD_PRELOAD", &file),
        );
        let printed = output.stdout;
        assert_eq!(printed.trim(), format!("{count} functions"));
    }
}
