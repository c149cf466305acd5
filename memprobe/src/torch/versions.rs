//! Ranges of PyTorch's versions.

/// First and last version of PyTorch, as `(major, minor)`.
pub(super) type Versions = [(u32, u32); 2];

pub(super) fn is_of([from, to]: &Versions, version: Option<&str>) -> bool {
    version
        .and_then(major_minor)
        .is_some_and(|version| (*from..=*to).contains(&version))
}

/// Parses `2.15.0+cu132` to `(2, 15)`.
pub(crate) fn major_minor(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_up_to_its_minor_number() {
        assert_eq!(major_minor("2.15.0+cu132"), Some((2, 15)));
        assert_eq!(major_minor("2.9"), Some((2, 9)));
        assert_eq!(major_minor("2.3a0+git"), Some((2, 3)));
        assert_eq!(major_minor("two"), None);
        assert_eq!(major_minor("2.x"), None);
    }
}
