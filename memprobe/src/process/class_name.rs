//! Demangles C++ names (Itanium C++ ABI, 5.1). They come from the target, so depth and length are limited.

use std::fmt;

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// The deepest nesting of a name that is demangled.
const DEEPEST: u32 = 192;

/// The longest name that is written out, in bytes; substitutions can make a name exponentially long.
const LONGEST: usize = 64 << 10;

/// A string with a maximum length; writes beyond it fail.
#[derive(Default)]
pub(crate) struct BoundedName(pub(crate) String);

impl fmt::Write for BoundedName {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.0.len() + more.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(more);
        Ok(())
    }
}

/// Returns the name of a mangled symbol (`_Z…`), without parameters and return type.
pub(crate) fn demangled(symbol: &[u8]) -> Option<String> {
    if !symbol.starts_with(b"_Z") {
        return None;
    }
    let parse = ParseOptions::default().recursion_limit(DEEPEST);
    let symbol = Symbol::new_with_options(symbol, &parse).ok()?;
    let options = DemangleOptions::new()
        .no_params()
        .no_return_type()
        .recursion_limit(DEEPEST);
    let mut name = BoundedName::default();
    symbol.structured_demangle(&mut name, &options).ok()?;
    Some(name.0)
}

pub fn is_mangled(name: &str) -> bool {
    let mut bytes = name.bytes();
    !name.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns `torch::autograd::AccumulateGrad` for `N5torch8autograd14AccumulateGradE`.
pub fn class_name(mangled: &str) -> Option<String> {
    let name = demangled(format!("_Z{mangled}").as_bytes())?;
    Some(name.replace("> >", ">>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_classes_read_as_in_the_source() {
        for (mangled, name) in [
            ("4Mine", "Mine"),
            (
                "N5torch8autograd14AccumulateGradE",
                "torch::autograd::AccumulateGrad",
            ),
            (
                "N5torch8autograd7CppNodeI8MySquareEE",
                "torch::autograd::CppNode<MySquare>",
            ),
            (
                "N5torch8autograd7CppNodeIN12_GLOBAL__N_16SquareEEE",
                "torch::autograd::CppNode<(anonymous namespace)::Square>",
            ),
            ("N1aI1bIiEEE", "a<b<int>>"),
        ] {
            assert_eq!(class_name(mangled).as_deref(), Some(name));
        }
    }

    #[test]
    fn what_is_not_understood_has_no_name() {
        for mangled in [
            "",
            "N",
            "NE",
            "N5torch",
            "9torch",
            "0",
            "99999999999999999999a",
        ] {
            assert_eq!(class_name(mangled), None, "{mangled}");
        }
        let deep = "N1aI".repeat(100_000);
        assert_eq!(class_name(&deep), None);
    }
}
