use std::io::Write;

use super::*;
use crate::process::maps::{Maps, Permissions};
use crate::process::memory::{ProcessMemory, ReadMemory};

fn me() -> Tgid {
    Tgid(std::process::id())
}

fn libc() -> MappedFile {
    Maps::of(me()).unwrap().libraries("libc.so").pop().unwrap()
}

/// Content of this machine's C library.
pub(super) fn bytes_of_libc() -> Vec<u8> {
    let (mut file, _) = libc().open(me()).unwrap();
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}

#[test]
fn an_exported_function_lies_where_the_loader_put_it() {
    let loaded = LoadedImage::open(&libc(), me()).unwrap();
    let found = loaded
        .image
        .symbols(&["malloc", "no_such_function", "free"])
        .unwrap();
    assert_eq!(found[1], None);
    let malloc = found[0].unwrap();
    let address: unsafe extern "C" fn(usize) -> *mut libc::c_void = libc::malloc;
    assert_eq!(loaded.address_of(malloc), address as usize as u64);
    assert_ne!(found[2], found[0]);
    let first = loaded
        .image
        .first_symbol(&["no_such_function", "free", "malloc"]);
    assert_eq!(first.unwrap(), found[2]);
}

#[test]
fn a_function_is_named_by_any_offset_within_it() {
    let image = LoadedImage::open(&libc(), me()).unwrap().image;
    let malloc = image.symbol("malloc").unwrap().unwrap();
    let begin = image.file_offset_of(malloc.vaddr).unwrap();
    let names = FunctionNames::of(image).unwrap();
    let is_malloc = |offset| {
        let name = names.at(offset).unwrap_or_default();
        String::from_utf8_lossy(&name).contains("malloc")
    };
    assert!(is_malloc(begin) && is_malloc(begin + malloc.size - 1));
    assert!(!is_malloc(begin + malloc.size));
    assert_eq!(names.at(0), None, "a header is no function");
    assert_eq!(names.at(u64::MAX), None);
    assert!(names.bytes() > 0);
}

#[test]
fn functions_of_a_broken_file_have_no_names_or_other_ones() {
    let whole = bytes_of_libc();
    let image = LoadedImage::open(&libc(), me()).unwrap().image;
    let malloc = image.symbol("malloc").unwrap().unwrap();
    let offset = image.file_offset_of(malloc.vaddr).unwrap();
    let table = image.section(".dynsym").unwrap().clone();
    let strings = image.section(".dynstr").unwrap().clone();
    let sections = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
    let index = image.sections.iter().position(|it| it.name == ".dynsym");
    let header = sections + 64 * index.unwrap();
    let damaged = |damage: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let names = ElfImage::open(file.path()).and_then(FunctionNames::of);
        names.ok().and_then(|names| names.at(offset))
    };
    // Elf64_Shdr: sh_size, sh_link and sh_offset of the table; then its entries and its strings.
    let fill = |at: usize, length: usize, with: u8| {
        move |bytes: &mut Vec<u8>| bytes[at..at + length].fill(with)
    };
    damaged(&|_| {}).expect("whole, it is named");
    for (what, damage) in [
        ("its table is larger than any", fill(header + 32, 8, 0xff)),
        (
            "its table begins beyond the end",
            fill(header + 24, 8, 0xff),
        ),
        ("its strings are no section", fill(header + 40, 4, 0xff)),
        (
            "its symbols are nothing",
            fill(table.offset as usize, table.size as usize, 0),
        ),
        (
            "its names end nowhere",
            fill(strings.offset as usize, strings.size as usize, b'x'),
        ),
    ] {
        assert_eq!(damaged(&damage), None, "{what}");
    }
    damaged(&fill(table.offset as usize, table.size as usize, 0xff));
}

#[test]
fn the_bytes_of_a_function_are_those_in_memory() {
    let loaded = LoadedImage::open(&libc(), me()).unwrap();
    let malloc = loaded.image.symbol("malloc").unwrap().unwrap();
    let in_file = loaded.image.bytes_at(malloc.vaddr, 64).unwrap();
    let memory = ProcessMemory::new(me());
    let in_memory = memory
        .read_bytes(loaded.address_of(malloc), 64, 64)
        .unwrap();
    assert_eq!(in_file, in_memory);
    let offset = loaded.image.file_offset_of(malloc.vaddr).unwrap();
    assert_eq!(loaded.image.range(offset, 64).unwrap(), in_memory);
}

/// Returns a copy of this machine's C library whose header has no section table.
fn libc_without_sections() -> (tempfile::NamedTempFile, ElfImage) {
    let mut bytes = bytes_of_libc();
    // e_shoff, and e_shnum with e_shstrndx (Elf64_Ehdr).
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    let image = ElfImage::open(file.path()).unwrap();
    (file, image)
}

#[test]
fn a_file_without_sections_is_searched_by_what_the_loader_goes_by() {
    let whole = LoadedImage::open(&libc(), me()).unwrap().image;
    let (_file, cut) = libc_without_sections();
    for name in [
        "malloc",
        "free",
        "_thread_db_sizeof_pthread",
        "no_such_function",
    ] {
        assert_eq!(
            cut.symbol(name).unwrap(),
            whole.symbol(name).unwrap(),
            "{name}"
        );
    }
    assert_eq!(
        cut.needs("ld-linux-x86-64.so.2").unwrap(),
        whole.needs("ld-linux-x86-64.so.2").unwrap()
    );
}

#[test]
fn a_file_that_is_damaged_anywhere_is_no_reason_to_panic() {
    let (file, _) = libc_without_sections();
    let whole = std::fs::read(file.path()).unwrap();
    let mut state = 1_u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize
    };
    // Header, program headers, hash table and symbols lie at the start.
    let mut bytes = whole[..whole.len().min(1 << 20)].to_vec();
    let beginning = bytes.len().min(1 << 16);
    for _ in 0..100 {
        let mut changed = Vec::new();
        for _ in 0..8 {
            let at = if random() % 2 == 0 {
                random() % 1024
            } else {
                random() % beginning
            };
            changed.push((at, bytes[at]));
            bytes[at] = random() as u8;
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        if let Ok(image) = ElfImage::open(file.path()) {
            let _ = image.symbol("malloc");
            let _ = image.needs("ld-linux");
        }
        for (at, byte) in changed.into_iter().rev() {
            bytes[at] = byte;
        }
    }
}

#[test]
fn a_name_matches_whole_or_not_at_all() {
    let image = ElfImage::open(&std::env::current_exe().unwrap()).unwrap();
    assert!(image.symbol("main").unwrap().is_some());
    assert!(image.symbol("mai").unwrap().is_none());
    assert!(image.symbol("").unwrap().is_none());
}

fn thread_local(symbol: &'static str, source: Option<&'static str>) -> ThreadLocalName {
    ThreadLocalName {
        symbol,
        source,
        size: None,
        within: 0,
    }
}

#[test]
fn thread_local_variables_of_one_name_are_distinguished_by_source() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, lead) in [("engine.c", 64), ("function.c", 128)] {
        let text = format!(
            "static __thread char lead[{lead}]; static __thread long task;\n\
             long {}_sum(void) {{ return lead[0] + task++; }}\n",
            &name[..name.len() - 2]
        );
        std::fs::write(path(name), text).unwrap();
    }
    let compiled = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-O0", "-o"])
        .arg(path("lib.so"))
        .args([path("engine.c"), path("function.c")])
        .status()
        .unwrap();
    assert!(compiled.success());
    let image = ElfImage::open(&path("lib.so")).unwrap();
    let place = |source| {
        image
            .thread_local(&[thread_local("task", Some(source))])
            .unwrap()
    };
    let (engine, function) = (place("engine.c").unwrap(), place("function.c").unwrap());
    assert!(function >= engine + 128, "{engine} {function}");
    assert_eq!(place("other.c"), None);
    let part = |size| {
        let name = ThreadLocalName {
            size: Some(size),
            within: 3,
            ..thread_local("task", Some("engine.c"))
        };
        image.thread_local(&[name]).unwrap()
    };
    assert_eq!((part(8), part(4)), (Some(engine + 3), None));
    // The dynamic linker writes the module's ID into the global offset table.
    let number = image.thread_local_number().unwrap().unwrap();
    let table = image.section(".got").unwrap();
    assert!((table.vaddr..table.vaddr + table.size).contains(&number));
}

#[test]
fn a_thread_local_variable_has_a_place_in_a_block_and_no_address() {
    let image = LoadedImage::open(&libc(), me()).unwrap().image;
    let place = image.thread_local(&[
        thread_local("no_such_variable", None),
        thread_local("errno", None),
    ]);
    let place = place.unwrap();
    assert!(place.is_some_and(|place| place < 4096), "{place:?}");
    assert_eq!(image.symbol("errno").unwrap(), None);
    assert_eq!(
        image.thread_local(&[thread_local("malloc", None)]).unwrap(),
        None
    );
}

#[test]
fn a_section_has_its_address_and_a_place_outside_has_no_bytes() {
    let image = ElfImage::open(&std::env::current_exe().unwrap()).unwrap();
    let text = image.section(".text").unwrap();
    assert_eq!(image.file_offset_of(text.vaddr), Some(text.offset));
    let bss = image.section(".bss").unwrap();
    assert_eq!(image.file_offset_of(bss.vaddr), None);
    assert!(image.bytes_at(u64::MAX, 16).is_err());
    assert!(image.section(".no.such").is_none());
}

#[test]
fn what_an_image_needs_is_what_the_loader_loads_with_it() {
    let image = ElfImage::open(&std::env::current_exe().unwrap()).unwrap();
    assert!(image.needs("libc.so").unwrap());
    assert!(!image.needs("lib").unwrap());
    assert!(!image.needs("libpython3").unwrap());
}

/// Opens an image with this content.
pub(super) fn image_of(bytes: &[u8]) -> Result<ElfImage, ElfError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    ElfImage::from_file(file)
}

#[test]
fn a_truncated_or_damaged_image_is_an_error_or_lacks_symbols_but_never_a_panic() {
    let whole = bytes_of_libc();
    for len in [0, 1, 16, 63, 64, 65, 500, 4096, 100_000, whole.len() - 1] {
        if let Ok(image) = image_of(&whole[..len]) {
            let _ = image.symbols(&["malloc"]);
        }
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let section_headers = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
    for _ in 0..60 {
        let mut damaged = whole.clone();
        for _ in 0..8 {
            damaged[random() as usize % 1024] = random() as u8;
            let headers = whole.len() - section_headers;
            damaged[section_headers + random() as usize % headers] = random() as u8;
        }
        damaged[..20].copy_from_slice(&whole[..20]);
        if let Ok(image) = image_of(&damaged) {
            let _ = image.symbols(&["malloc", "free"]);
            let _ = image.needs("libc.so");
            let _ = image.thread_local(&[thread_local("errno", None)]);
            let _ = image.thread_local_number();
            let _ = image.file_offset_of(random());
            let _ = image.bytes_at(random() % 0x20_0000, 64);
            let _ = image.load_bias(&libc().mappings);
        }
    }
}

fn synthetic(kind: ImageKind) -> ElfImage {
    let segment = |offset, vaddr, executable| Segment {
        offset,
        file_size: 0x2000,
        vaddr,
        executable,
    };
    ElfImage {
        file: tempfile::tempfile().unwrap(),
        kind,
        segments: vec![
            segment(0, 0, false),
            segment(0x2000, 0x2000, true),
            segment(0x4dc8, 0x5dc8, false),
        ],
        sections: Vec::new(),
    }
}

fn mapping(start: u64, offset: u64, execute: bool) -> Mapping {
    Mapping {
        start,
        end: start + 0x1000,
        perms: Permissions {
            read: true,
            write: false,
            execute,
            shared: false,
        },
        offset,
        dev: Default::default(),
        inode: 1,
        path: "/lib/x.so".into(),
        deleted: false,
    }
}

#[test]
fn the_load_bias_is_what_most_mappings_agree_on() {
    let image = synthetic(ImageKind::Relocatable);
    let loaded = [
        mapping(0x10_0000, 0, false),
        mapping(0x7000_0000, 0, false),
        mapping(0x7000_2000, 0x2000, true),
        mapping(0x7000_5000, 0x4000, false),
        mapping(0x7000_6000, 0x5000, false),
    ];
    assert_eq!(image.load_bias(&loaded), Some(0x7000_0000));
    assert_eq!(image.load_bias(&loaded[4..]), None);
    assert_eq!(image.load_bias(&[]), None);
}

#[test]
fn a_program_at_fixed_addresses_has_no_bias() {
    assert_eq!(synthetic(ImageKind::Fixed).load_bias(&[]), Some(0));
}
