//! Field offsets in the running kernel's structures, from its own types (BTF, Documentation/bpf/btf.rst).
//!
//! People wait for this at each start. One pass over the headers of all types (5.5 MB, 150,000 types) takes some
//! milliseconds, where a parser that builds each type takes 0.17 s.

use anyhow::{Context as _, Result, bail, ensure};

/// `BTF_MAGIC` on a little-endian machine, and the size of `struct btf_header` that is read here.
const MAGIC: u32 = 0xeb9f;
const HEADER: usize = 24;

/// Size of `struct btf_type` and of `struct btf_member`.
const TYPE: usize = 12;
const MEMBER: usize = 12;

/// Most anonymous structures within each other, and most typedefs and qualifiers in a row.
const MAX_DEPTH: usize = 16;

/// `BTF_KIND_*` (include/uapi/linux/btf.h).
mod kind {
    pub const INT: u32 = 1;
    pub const POINTER: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FORWARD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNCTION: u32 = 12;
    pub const FUNCTION_PROTOTYPE: u32 = 13;
    pub const VARIABLE: u32 = 14;
    pub const DATA_SECTION: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECLARATION_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// The kernel's types.
pub struct KernelTypes<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Byte offset in `types` of each type, by its number less 1.
    starts: Vec<usize>,
}

/// The fixed part of a type.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    members: usize,
    has_bit_fields: bool,
    /// The type that a typedef or a qualifier refers to.
    of: u32,
    /// Byte offset of what follows.
    after: usize,
}

impl<'a> KernelTypes<'a> {
    /// Finds where each type begins.
    pub fn parse(file: &'a [u8]) -> Result<Self> {
        ensure!(
            word(file, 0).is_some_and(|word| word & 0xffff == MAGIC),
            "no BTF of this machine"
        );
        let section = |at: usize| {
            let header = word(file, 4)? as usize;
            let start = header.checked_add(word(file, at)? as usize)?;
            file.get(start..start.checked_add(word(file, at + 4)? as usize)?)
        };
        let cut = || "the file ends within its header";
        ensure!(file.len() >= HEADER, cut());
        let mut all = Self {
            types: section(8).with_context(cut)?,
            strings: section(16).with_context(cut)?,
            starts: Vec::new(),
        };
        let mut at = 0;
        while at < all.types.len() {
            all.starts.push(at);
            let known = all.type_at(at)?;
            at = known.after + following(known)?;
        }
        Ok(all)
    }

    /// Returns the byte offset of a field, such as `thread.fsbase`, in a structure.
    pub fn offset(&self, structure: &str, path: &str) -> Result<u64> {
        let mut found = self.structure(structure)?;
        let mut bits = 0;
        for (depth, field) in path.split('.').enumerate() {
            ensure!(depth < MAX_DEPTH, "{path} is too long");
            let (offset, of) = self
                .field(found, field, 0)
                .with_context(|| format!("this kernel's {structure} has no {path}"))?;
            bits += offset;
            found = self.resolved(of)?;
        }
        ensure!(bits % 8 == 0, "{structure}.{path} is a bit field");
        Ok(bits / 8)
    }

    fn structure(&self, name: &str) -> Result<Type> {
        for &start in &self.starts {
            let one = self.type_at(start)?;
            if one.kind == kind::STRUCT && self.is_named(one.name, name) {
                return Ok(one);
            }
        }
        bail!("the kernel's types have no {name}")
    }

    /// Returns the offset in bits and the type of a field, also of an anonymous structure within.
    fn field(&self, structure: Type, name: &str, depth: usize) -> Option<(u64, u32)> {
        if depth > MAX_DEPTH || !matches!(structure.kind, kind::STRUCT | kind::UNION) {
            return None;
        }
        (0..structure.members).find_map(|index| {
            let at = structure.after + index * MEMBER;
            let (own, of) = (word(self.types, at)?, word(self.types, at + 4)?);
            let offset = word(self.types, at + 8)?;
            let bits = u64::from(if structure.has_bit_fields {
                offset & 0xff_ffff
            } else {
                offset
            });
            if self.is_named(own, name) {
                return Some((bits, of));
            }
            if own != 0 {
                return None;
            }
            let within = self.field(self.resolved(of).ok()?, name, depth + 1)?;
            Some((bits + within.0, within.1))
        })
    }

    /// Follows typedefs and qualifiers to the type behind them.
    fn resolved(&self, number: u32) -> Result<Type> {
        let mut number = number;
        for _ in 0..MAX_DEPTH {
            let start = (number as usize).checked_sub(1);
            let start = start.and_then(|index| self.starts.get(index));
            let one = self.type_at(*start.context("a type without its definition")?)?;
            match one.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    number = one.of
                }
                _ => return Ok(one),
            }
        }
        bail!("too many typedefs in a row")
    }

    fn type_at(&self, at: usize) -> Result<Type> {
        let field =
            |index: usize| word(self.types, at + 4 * index).context("the last type is cut off");
        let info = field(1)?;
        Ok(Type {
            name: field(0)?,
            kind: info >> 24 & 0x1f,
            members: (info & 0xffff) as usize,
            has_bit_fields: info >> 31 != 0,
            of: field(2)?,
            after: at + TYPE,
        })
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let text = self.strings.get(offset as usize..).unwrap_or_default();
        text.strip_prefix(name.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// Bytes that follow the fixed part of a type.
fn following(one: Type) -> Result<usize> {
    Ok(match one.kind {
        kind::INT | kind::VARIABLE | kind::DECLARATION_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION => one.members * MEMBER,
        kind::ENUM | kind::FUNCTION_PROTOTYPE => one.members * 8,
        kind::DATA_SECTION | kind::ENUM64 => one.members * 12,
        kind::POINTER
        | kind::FORWARD
        | kind::TYPEDEF
        | kind::VOLATILE
        | kind::CONST
        | kind::RESTRICT
        | kind::FUNCTION
        | kind::FLOAT
        | kind::TYPE_TAG => 0,
        unknown => {
            bail!("the kernel's types have a kind {unknown}, which this memprobe does not know")
        }
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strings of [`small`]: the first is empty, as BTF wants it.
    const STRINGS: &[u8] = b"\0int\0inner\0outer\0a\0b\0flag\0inner_t\0";

    fn name(text: &str) -> u32 {
        let text = [b"\0", text.as_bytes(), b"\0"].concat();
        let place = STRINGS.windows(text.len()).position(|it| it == text);
        u32::try_from(place.expect("a string") + 1).expect("short")
    }

    /// `struct outer { int a; struct { int flag : 3; struct inner { int b; } const inner; }; }`, with a typedef.
    fn small() -> Vec<u8> {
        let info = |kind: u32, members: u32| kind << 24 | members;
        let bit_fields = 1 << 31;
        let types: Vec<u32> = [
            &[name("int"), info(kind::INT, 0), 4, 32][..],
            &[name("inner"), info(kind::STRUCT, 1), 8, name("b"), 1, 32],
            &[name("inner_t"), info(kind::TYPEDEF, 0), 2],
            &[0, info(kind::CONST, 0), 3],
            // The anonymous one: a bit field at bit 1, and the structure behind its qualifiers at byte 8.
            &[
                0,
                info(kind::STRUCT, 2) | bit_fields,
                16,
                name("flag"),
                1,
                3 << 24 | 1,
            ],
            &[name("inner"), 4, 64],
            &[
                name("outer"),
                info(kind::STRUCT, 2),
                24,
                name("a"),
                1,
                0,
                0,
                5,
                64,
            ],
        ]
        .concat();
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (types_length, strings_length) = (types.len() as u32, STRINGS.len() as u32);
        let header = [
            MAGIC | 1 << 16,
            24,
            0,
            types_length,
            types_length,
            strings_length,
        ];
        let header = header.iter().flat_map(|word| word.to_le_bytes());
        header.chain(types).chain(STRINGS.iter().copied()).collect()
    }

    #[test]
    fn a_field_is_found_through_typedefs_and_anonymous_structures() {
        let file = small();
        let types = KernelTypes::parse(&file).expect("parsed");
        assert_eq!(types.offset("outer", "a").expect("a"), 0);
        assert_eq!(types.offset("outer", "inner").expect("inner"), 16);
        assert_eq!(types.offset("outer", "inner.b").expect("b"), 20);
        for (structure, path, reason) in [
            ("outer", "flag", "a bit field"),
            ("outer", "b", "has no b"),
            ("outer", "a.b", "has no a.b"),
            ("outer", "in", "has no in"),
            ("inner_t", "b", "have no inner_t"),
        ] {
            let error = types.offset(structure, path).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let file = small();
        for length in 0..file.len() {
            assert!(KernelTypes::parse(&file[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn types_that_refer_to_themselves_come_to_an_end() {
        let mut file = small();
        // The structure within the anonymous one becomes the anonymous one; the qualifier its own type.
        let anonymous = HEADER + 4 * (4 + 6 + 3 + 3);
        file[anonymous + 24..anonymous + 32].copy_from_slice(&[0, 0, 0, 0, 5, 0, 0, 0]);
        file[anonymous - 4] = 4;
        let types = KernelTypes::parse(&file).expect("parsed");
        assert!(types.offset("outer", "b").is_err());
        assert!(types.resolved(4).is_err());
    }

    #[test]
    fn this_kernels_fields_are_where_another_parser_finds_them() {
        let Ok(file) = std::fs::read(crate::probe::kernel::KERNEL_TYPES) else {
            println!("skipped: this kernel does not publish its types");
            return;
        };
        let types = KernelTypes::parse(&file).expect("parsed");
        let other = btfparse::TypeInformation::new(&InMemory(&file));
        let other = other.map_err(|error| format!("{error:?}")).expect("parsed");
        for (structure, path) in [
            ("task_struct", "thread.fsbase"),
            ("task_struct", "pid"),
            ("task_struct", "tgid"),
            ("task_struct", "signal"),
            ("signal_struct", "live"),
            ("mm_struct", "pgd"),
            ("sk_buff", "next"),
            ("sock", "__sk_common.skc_family"),
        ] {
            let id = other.id_of(structure).expect("a structure");
            let theirs = other.offset_of(id, path);
            let theirs = theirs.map_err(|error| format!("{error:?}")).expect(path);
            let btfparse::Offset::ByteOffset(bytes) = theirs.1 else {
                panic!("{structure}.{path} is a bit field");
            };
            let ours = types.offset(structure, path).expect(path);
            assert_eq!(ours, u64::from(bytes), "{structure}.{path}");
        }
    }

    struct InMemory<'a>(&'a [u8]);

    impl btfparse::Readable for InMemory<'_> {
        fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), btfparse::Error> {
            let start = usize::try_from(offset).expect("a file in memory");
            let bytes = self
                .0
                .get(start..)
                .and_then(|rest| rest.get(..buffer.len()));
            let end = || btfparse::Error::new(btfparse::ErrorKind::IOError, "past the end");
            buffer.copy_from_slice(bytes.ok_or_else(end)?);
            Ok(())
        }
    }
}
