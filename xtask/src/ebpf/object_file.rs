//! Post-processing of bpf-linker's output: removes DWARF and requires BTF. DWARF is nine tenths of
//! the object, and neither the kernel nor aya reads it.

use anyhow::{Context, Result, bail};
use object::build::elf::{Builder, Section, SectionData};
use object::elf::SHT_STRTAB;

/// Removes the DWARF sections of an eBPF object and their relocations.
pub fn without_dwarf(object: &[u8]) -> Result<Vec<u8>> {
    let mut elf = Builder::read(object).context("bpf-linker wrote no ELF file")?;
    let is_dwarf = |name: &[u8]| name.starts_with(b".debug_");
    let dwarf: Vec<_> = elf
        .sections
        .iter()
        .filter(|section| is_dwarf(section.name.as_slice()))
        .map(|section| section.id())
        .collect();
    for section in &mut elf.sections {
        let relocates_dwarf = matches!(section.data, SectionData::Relocation(_))
            && section
                .sh_info_section
                .is_some_and(|id| dwarf.contains(&id));
        if dwarf.contains(&section.id()) || relocates_dwarf {
            section.delete = true;
        }
    }
    elf.delete_orphans();
    let named = |section: &Section<'_>| matches!(section.data, SectionData::SectionString);
    if !elf.sections.iter().any(named) {
        // LLVM keeps section and symbol names in one table; the `object` writer needs two.
        let names = elf.sections.add();
        names.name = b".shstrtab".as_slice().into();
        names.sh_type = SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    elf.set_section_sizes();
    let mut stripped = Vec::new();
    elf.write(&mut stripped)
        .context("cannot write the object anew")?;
    Ok(stripped)
}

/// Fails unless the object can be committed: with BTF and a licence, and without the name of any of
/// `folders` (absolute paths of this machine).
pub fn check(object: &[u8], folders: &[&str]) -> Result<()> {
    let elf = Builder::read(object).context("the object is no ELF file")?;
    let has = |name: &str| {
        elf.sections
            .iter()
            .any(|section| section.name.as_slice() == name.as_bytes())
    };
    for (section, cause) in [
        (".BTF", "rustc needs -Cdebuginfo=2 and bpf-linker --btf"),
        (
            "license",
            "a static in `#[link_section = \"license\"]` is missing",
        ),
    ] {
        if !has(section) {
            bail!("the object has no section {section}: {cause}");
        }
    }
    for folder in folders {
        if object
            .windows(folder.len())
            .any(|window| window == folder.as_bytes())
        {
            bail!(
                "the object names the folder {folder} of this machine, so another machine would \
                 build other bytes; map it with --remap-path-prefix in xtask/src/ebpf/compile.rs"
            );
        }
    }
    Ok(())
}
