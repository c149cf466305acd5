//! Probes on the calls of a function within another, where only some of its callers are of interest.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use crate::process::elf::{ElfError, ElfImage, Symbol};

/// The most bytes of the calling function that are decoded.
const MAX_CODE: u64 = 64 << 10;

/// Bytes of an entry of the procedure linkage table (System V ABI, x86-64, "Procedure Linkage Table").
const LINKAGE_ENTRY: usize = 16;

/// Finds the only call of the function named `callee` in `caller`, straight or through the procedure linkage table.
/// At the call the registers are those of the callee's entry.
pub fn find(image: &ElfImage, caller: Symbol, callee: &str) -> Result<Symbol, ElfError> {
    let slots = image.linkage_slots(callee)?;
    let own = image.symbol(callee)?.map(|symbol| symbol.vaddr);
    let code = image.bytes_at(caller.vaddr, caller.size.min(MAX_CODE) as usize)?;
    let mut calls = Vec::new();
    for instruction in Decoder::with_ip(64, &code, caller.vaddr, DecoderOptions::NONE).iter() {
        if instruction.flow_control() != FlowControl::Call
            || instruction.op0_kind() != OpKind::NearBranch64
        {
            continue;
        }
        let target = instruction.near_branch_target();
        let is_linked = || linked_slot(image, target).is_some_and(|slot| slots.contains(&slot));
        if own == Some(target) || is_linked() {
            calls.push(instruction.ip());
        }
    }
    match calls[..] {
        [vaddr] => Ok(Symbol { vaddr, size: 0 }),
        _ => Err(ElfError::Unexpected("not one call of the function")),
    }
}

/// The word through which the entry of the procedure linkage table at `vaddr` jumps.
fn linked_slot(image: &ElfImage, vaddr: u64) -> Option<u64> {
    let code = image.bytes_at(vaddr, LINKAGE_ENTRY).ok()?;
    let mut decoder = Decoder::with_ip(64, &code, vaddr, DecoderOptions::NONE);
    let mut instruction = decoder.decode();
    if is_landing_pad(&instruction) {
        instruction = decoder.decode();
    }
    (instruction.flow_control() == FlowControl::IndirectBranch
        && instruction.is_ip_rel_memory_operand())
    .then(|| instruction.ip_rel_memory_address())
}

fn is_landing_pad(instruction: &Instruction) -> bool {
    instruction.mnemonic() == iced_x86::Mnemonic::Endbr64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
        __attribute__((noinline)) long callee(long x) { return x * 3; }
        long once(long x) { return callee(x + 1) + 1; }
        long twice(long x) { return callee(x) + callee(x + 1); }
        long other(long x) { return once(x) + 1; }
    ";

    fn library(folder: &std::path::Path, options: &[&str]) -> ElfImage {
        let (source, library) = (folder.join("lib.c"), folder.join("lib.so"));
        std::fs::write(&source, SOURCE).unwrap();
        let compiled = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .args(options)
            .status()
            .unwrap();
        assert!(compiled.success());
        ElfImage::open(&library).unwrap()
    }

    #[test]
    fn finds_the_only_call_through_the_linkage_table_or_straight() {
        for options in [&["-Wl,-z,lazy"][..], &["-Wl,-Bsymbolic"]] {
            let folder = tempfile::tempdir().unwrap();
            let image = library(folder.path(), options);
            let function = |name| image.symbol(name).unwrap().unwrap();
            let once = function("once");
            let call = find(&image, once, "callee").unwrap();
            assert!((once.vaddr..once.vaddr + once.size).contains(&call.vaddr));
            let code = image.bytes_at(call.vaddr, 5).unwrap();
            assert_eq!(code[0], 0xe8, "a near call");
            for (caller, callee) in [("twice", "callee"), ("other", "callee"), ("once", "gone")] {
                let found = find(&image, function(caller), callee);
                assert!(
                    matches!(found, Err(ElfError::Unexpected(_))),
                    "{caller} {callee}: {found:?}"
                );
            }
        }
    }
}
