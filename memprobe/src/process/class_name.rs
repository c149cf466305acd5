//! Demangles class names: the part of the mangling scheme that class names need (Itanium C++ ABI, 5.1).

/// The deepest nesting of templates.
const DEEPEST: usize = 8;

/// True if a text consists of the characters of a mangled name.
pub fn is_mangled(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns `torch::autograd::AccumulateGrad` for `N5torch8autograd14AccumulateGradE`. `None` for a name with
/// anything but namespaces, classes and class templates.
pub fn class_name(mangled: &str) -> Option<String> {
    let mut rest = mangled;
    let name = class(&mut rest, 0)?;
    rest.is_empty().then_some(name)
}

/// Consumes one class from the front of a text.
fn class(rest: &mut &str, depth: usize) -> Option<String> {
    if depth > DEEPEST {
        return None;
    }
    if let Some(tail) = rest.strip_prefix('N') {
        *rest = tail;
        let mut name = part(rest, depth)?;
        loop {
            if let Some(tail) = rest.strip_prefix('E') {
                *rest = tail;
                return Some(name);
            }
            name.push_str("::");
            name.push_str(&part(rest, depth)?);
        }
    }
    part(rest, depth)
}

/// Consumes one name with its template arguments.
fn part(rest: &mut &str, depth: usize) -> Option<String> {
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (length, tail) = rest.split_at(digits);
    let length = length.parse().ok().filter(|&length| length > 0)?;
    let name = tail.get(..length)?;
    *rest = tail.get(length..)?;
    let mut name = match name.starts_with("_GLOBAL__N") {
        true => "(anonymous namespace)".to_owned(),
        false => name.to_owned(),
    };
    if let Some(tail) = rest.strip_prefix('I') {
        *rest = tail;
        let mut arguments = Vec::new();
        while !rest.starts_with('E') {
            arguments.push(class(rest, depth + 1)?);
        }
        *rest = &rest[1..];
        name = format!("{name}<{}>", arguments.join(", "));
    }
    Some(name)
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
            "N1aS_E",
            "N1aIiEE",
            "99999999999999999999a",
        ] {
            assert_eq!(class_name(mangled), None, "{mangled}");
        }
        let deep = "N1aI".repeat(100_000);
        assert_eq!(class_name(&deep), None);
    }
}
