//! Demangles C++ and Rust function names.

use std::fmt;

use crate::process::class_name::{BoundedName, demangled};

/// The longest name that is kept, in characters.
const MAX_LETTERS: usize = 200;

const ANONYMOUS: &str = "(anonymous namespace)";

/// Returns the function name of a symbol, such as `at::native::mbtopk::launch`: namespaces, classes and name,
/// without return type, parameters and template arguments. A symbol that is not mangled stays as it is. Rust
/// symbols become Rust paths.
pub fn function(symbol: &[u8]) -> String {
    let name = of_rust(symbol).unwrap_or_else(|| {
        let name = demangled(symbol);
        without_arguments(&name.unwrap_or_else(|| String::from_utf8_lossy(symbol).into_owned()))
    });
    match name.char_indices().nth(MAX_LETTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    }
}

/// Demangles a Rust symbol; a legacy one has the C++ form but ends in a hash.
fn of_rust(symbol: &[u8]) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(std::str::from_utf8(symbol).ok()?).ok()?;
    let mut name = BoundedName::default();
    fmt::write(&mut name, format_args!("{symbol:#}")).ok()?;
    Some(name.0)
}

/// Removes everything in brackets, and everything after the name.
fn without_arguments(name: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0u32;
    let mut rest = name;
    while let Some(letter) = rest.chars().next() {
        let mut taken = letter.len_utf8();
        if depth == 0 && rest.starts_with(" [clone") {
            break;
        } else if depth == 0 && rest.starts_with(ANONYMOUS) {
            taken = ANONYMOUS.len();
            plain.push_str(ANONYMOUS);
        } else if let (0, Some(length)) = (depth, operator(&plain, rest)) {
            taken = length;
            plain.push_str(&rest[..length]);
        } else if rest.starts_with("->") {
            // `->` is no bracket.
            taken = 2;
        } else {
            match letter {
                '<' | '(' => depth += 1,
                '>' | ')' => depth = depth.saturating_sub(1),
                _ if depth == 0 => plain.push(letter),
                _ => {}
            }
        }
        rest = &rest[taken..];
    }
    let plain = plain.trim_end();
    plain.strip_suffix(" const").unwrap_or(plain).to_owned()
}

/// Returns the length of an operator's name that contains brackets, such as `operator<<`.
fn operator(before: &str, rest: &str) -> Option<usize> {
    const WORD: &str = "operator";
    const SIGNS: [&str; 12] = [
        "()", "<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">",
    ];
    let is_whole = !before.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
    let signs = rest.strip_prefix(WORD).filter(|_| is_whole)?;
    let sign = SIGNS.iter().find(|sign| signs.starts_with(**sign))?;
    Some(WORD.len() + sign.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_rust_has_its_path_without_the_hash() {
        for (symbol, name) in [
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            (
                "_ZN60_$LT$alloc..string..String$u20$as$u20$core..fmt..Display$GT$3fmt17h0123456789abcdefE",
                "<alloc::string::String as core::fmt::Display>::fmt",
            ),
            ("_RNvC6cudars4main", "cudars::main"),
        ] {
            assert_eq!(function(symbol.as_bytes()), name);
        }
    }

    #[test]
    fn a_function_has_its_namespaces_and_no_arguments() {
        for (symbol, name) in [
            (
                "_ZN2at6native17resize_bytes_cudaEPN3c1011StorageImplEm",
                "at::native::resize_bytes_cuda",
            ),
            (
                "_ZN2at4cuda3cub15radix_sort_keysIlEEvPKT_PS3_lbll",
                "at::cuda::cub::radix_sort_keys",
            ),
            (
                "_ZN3c1011DeviceArrayIlEC2ERNS_9AllocatorEm",
                "c10::DeviceArray::DeviceArray",
            ),
            (
                "_ZN5torch4cuda12_GLOBAL__N_1L15gather_with_cppEv",
                "torch::cuda::(anonymous namespace)::gather_with_cpp",
            ),
            ("_ZStlsIcEvv", "std::operator<<"),
            ("_ZN1AclEi", "A::operator()"),
            (
                "_ZZN2at6native15arange_cuda_outERKN3c106ScalarES4_S4_RNS_6TensorEENKUlvE_clEv.isra.0",
                "at::native::arange_cuda_out::{lambda#1}::operator()",
            ),
            ("THPStorage_pynew", "THPStorage_pynew"),
        ] {
            assert_eq!(function(symbol.as_bytes()), name, "{symbol}");
        }
    }

    #[test]
    fn arrows_and_brackets_in_arguments_are_passed_over() {
        assert_eq!(
            without_arguments("f<decltype(a->b), 3>::g(int (*)()) const [clone .cold]"),
            "f::g"
        );
        assert_eq!(without_arguments("my_operator<int>(int)"), "my_operator");
    }

    #[test]
    fn a_name_that_is_none_or_has_no_end_does_no_harm() {
        assert_eq!(function(b"_Z"), "_Z");
        assert!(!function(&[0xff; 3]).is_empty());
        assert!(function(b"))))>>>>((((").is_empty());
        let mut deep = b"_ZN".to_vec();
        deep.extend(b"1AIN".repeat(5000));
        assert!(function(&deep).chars().count() <= MAX_LETTERS + 1);
        // Each type doubles the previous one.
        let mut wide = b"_Z1fI1aIiiE".to_vec();
        for at in 0..30u8 {
            let at = [b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[usize::from(at)]];
            wide.extend([b"1bIS", &at[..], b"_S", &at[..], b"_E"].concat());
        }
        wide.extend(b"Evv");
        assert!(function(&wide).chars().count() <= MAX_LETTERS + 1);
    }
}
