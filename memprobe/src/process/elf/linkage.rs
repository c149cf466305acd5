//! Functions that an image calls through its procedure linkage table.

use object::LittleEndian;
use object::elf;
use object::read::elf::Sym as _;

use super::{ElfImage, RawRelocation, RawSymbol, Result, entries, text_at};

/// The section with the relocations of the procedure linkage table.
const RELOCATIONS: &str = ".rela.plt";

impl ElfImage {
    /// Returns the addresses before relocation of the words through which the procedure linkage table jumps to the
    /// function with this mangled name (`R_X86_64_JUMP_SLOT`). Empty for a function that is not called so.
    pub fn linkage_slots(&self, name: &str) -> Result<Vec<u64>> {
        let Some(relocations) = self.section(RELOCATIONS) else {
            return Ok(Vec::new());
        };
        let linked = usize::try_from(relocations.link).ok();
        let Some(table) = linked.and_then(|link| self.sections.get(link)) else {
            return Ok(Vec::new());
        };
        let strings = self.strings_of(table)?;
        let symbols = self.section_bytes(table)?;
        let symbols = entries::<RawSymbol>(&symbols)?;
        let is_named = |index: u32| {
            let symbol = symbols.get(index as usize);
            let own =
                symbol.and_then(|symbol| text_at(&strings, symbol.st_name(LittleEndian).into()));
            own == Some(name.as_bytes())
        };
        let bytes = self.section_bytes(relocations)?;
        let slots = entries::<RawRelocation>(&bytes)?
            .iter()
            .filter(|relocation| {
                relocation.r_type(LittleEndian, false) == elf::R_X86_64_JUMP_SLOT
                    && is_named(relocation.r_sym(LittleEndian, false))
            });
        Ok(slots.map(|slot| slot.r_offset.get(LittleEndian)).collect())
    }
}
