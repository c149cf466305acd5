//! Finds the function at an address, even in libraries with hundreds of megabytes of symbols.

use std::ops::Range;

use object::LittleEndian;
use object::elf;
use object::read::elf::Sym;

use super::{ElfError, ElfImage, RawSymbol, Result, Section, entries};

/// The most symbols that are read of a file. A symbol has 24 bytes there; a function takes 16 here.
/// libtorch_cpu of PyTorch 2.15 has half a million symbols.
const MAX_SYMBOLS: u64 = 4 << 20;

/// The longest name that is read, in bytes; template names reach a few thousand.
const LONGEST_NAME: u64 = 16 << 10;

/// The functions of an image by address. Names stay in the file until they are requested.
#[derive(Debug)]
pub struct FunctionNames {
    image: ElfImage,
    functions: Vec<Function>,
    names: Range<u64>,
}

#[derive(Debug)]
struct Function {
    vaddr: u64,
    size: u32,
    name: u32,
}

impl FunctionNames {
    /// Reads `.symtab`, or the dynamic symbols if it is missing or names no functions.
    /// Fails with [`ElfError`] if neither table can be read, or one has more symbols than any library.
    pub fn of(image: ElfImage) -> Result<Self> {
        let mut outcome = Err(ElfError::Malformed("no symbols"));
        for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            let table = image.sections.iter().find(|section| section.kind == kind);
            let Some(table) = table else { continue };
            outcome = read(&image, table);
            if outcome.as_ref().is_ok_and(|(found, _)| !found.is_empty()) {
                break;
            }
        }
        let (functions, names) = outcome?;
        Ok(Self {
            image,
            functions,
            names,
        })
    }

    pub fn bytes(&self) -> usize {
        self.functions.capacity() * size_of::<Function>()
    }

    /// Returns the mangled name of the function at `offset` in the file; `None` if no symbol covers it.
    pub fn at(&self, offset: u64) -> Option<Vec<u8>> {
        let segment = self.image.segments.iter().find(|segment| {
            let within = offset.checked_sub(segment.offset);
            segment.executable && within.is_some_and(|within| within < segment.file_size)
        })?;
        let vaddr = (offset - segment.offset).checked_add(segment.vaddr)?;
        let after = self.functions.partition_point(|it| it.vaddr <= vaddr);
        let function = &self.functions[..after].last()?;
        if vaddr - function.vaddr >= u64::from(function.size) {
            return None;
        }
        self.name(function)
    }

    fn name(&self, function: &Function) -> Option<Vec<u8>> {
        let start = self.names.start.checked_add(function.name.into())?;
        let limit = self.names.end.checked_sub(start)?.min(LONGEST_NAME);
        let mut name = self.image.range(start, limit).ok()?;
        let end = name.iter().position(|&byte| byte == 0)?;
        name.truncate(end);
        (end > 0).then_some(name)
    }
}

fn read(image: &ElfImage, table: &Section) -> Result<(Vec<Function>, Range<u64>)> {
    let strings = image.string_section_of(table)?;
    let end = strings.offset.checked_add(strings.size);
    let names = strings.offset..end.ok_or(ElfError::Malformed("names without end"))?;
    if table.size > MAX_SYMBOLS * size_of::<RawSymbol>() as u64 {
        return Err(ElfError::Malformed("more symbols than a library has"));
    }
    let mut functions = Vec::new();
    for chunk in image.chunks(table)? {
        functions.extend(entries::<RawSymbol>(&chunk?)?.iter().filter_map(function));
    }
    functions.sort_unstable_by_key(|function| (function.vaddr, function.name));
    functions.dedup_by_key(|function| function.vaddr);
    functions.shrink_to_fit();
    Ok((functions, names))
}

fn function(symbol: &RawSymbol) -> Option<Function> {
    let kind = symbol.st_type();
    let size = symbol.st_size(LittleEndian);
    let is_function = kind == elf::STT_FUNC || kind == elf::STT_GNU_IFUNC;
    let is_here = symbol.st_shndx(LittleEndian) != elf::SHN_UNDEF && size > 0;
    (is_function && is_here).then(|| Function {
        vaddr: symbol.st_value(LittleEndian),
        size: u32::try_from(size).unwrap_or(u32::MAX),
        name: symbol.st_name(LittleEndian),
    })
}
