//! Modules that differ in number alone, as the layers of a transformer, as one name.

use std::collections::HashSet;

/// Paths of modules, and which of them are parts of numbered ones.
pub(super) struct Paths<'a> {
    /// Paths of what has parts.
    whole: HashSet<&'a str>,
}

impl<'a> Paths<'a> {
    pub(super) fn of(paths: impl Iterator<Item = &'a str>) -> Self {
        let mut whole = HashSet::new();
        for path in paths {
            for (at, _) in path.match_indices('.') {
                whole.insert(&path[..at]);
            }
        }
        Self { whole }
    }

    /// The path with a `*` for the numbers of modules that have parts of their own, as in `GPT.layers.*.mlp`. Modules without such
    /// may be anything, so they stay as they are.
    pub(super) fn pattern(&self, path: &str) -> String {
        let mut end = 0;
        let names = path.split('.').map(|name| {
            end += name.len() + usize::from(end > 0);
            let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
            match is_number && self.whole.contains(&path[..end]) {
                true => "*",
                false => name,
            }
        });
        names.collect::<Vec<_>>().join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_with_parts_are_alike_and_leaves_are_not() {
        let all = [
            "GPT.layers.0.mlp.0",
            "GPT.layers.0",
            "GPT.layers.11.mlp.0",
            "GPT.head.1",
            "",
            ".",
        ];
        let paths = Paths::of(all.into_iter());
        assert_eq!(paths.pattern(all[0]), "GPT.layers.*.mlp.0");
        assert_eq!(paths.pattern(all[1]), "GPT.layers.*");
        assert_eq!(paths.pattern(all[2]), "GPT.layers.*.mlp.0");
        assert_eq!(paths.pattern(all[3]), "GPT.head.1");
        assert_eq!(paths.pattern("") + &paths.pattern("."), ".");
    }
}
