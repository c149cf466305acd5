//! Common names for modules that differ only in a number, such as a transformer's layers.

use std::collections::HashSet;

/// Paths of modules, which tell numbered modules with parts from numbered leaves.
pub(super) struct NumberedPaths<'a> {
    whole: HashSet<&'a str>,
}

impl<'a> NumberedPaths<'a> {
    pub(super) fn of(paths: impl Iterator<Item = &'a str>) -> Self {
        let mut whole = HashSet::new();
        for path in paths {
            for (at, _) in path.match_indices('.') {
                whole.insert(&path[..at]);
            }
        }
        Self { whole }
    }

    /// Replaces the numbers of modules that have parts by `*`, as in `GPT.layers.*.mlp`. Numbered
    /// modules without parts may differ in kind, so they stay.
    pub(super) fn pattern(&self, path: &str) -> String {
        let mut end = 0;
        let names = path.split('.').map(|name| {
            end += name.len() + usize::from(end > 0);
            let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
            if is_number && self.whole.contains(&path[..end]) {
                "*"
            } else {
                name
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
        let paths = NumberedPaths::of(all.into_iter());
        assert_eq!(paths.pattern(all[0]), "GPT.layers.*.mlp.0");
        assert_eq!(paths.pattern(all[1]), "GPT.layers.*");
        assert_eq!(paths.pattern(all[2]), "GPT.layers.*.mlp.0");
        assert_eq!(paths.pattern(all[3]), "GPT.head.1");
        assert_eq!(paths.pattern("") + &paths.pattern("."), ".");
    }
}
