//! Functions of a Python source, by the indentation of its lines.

use std::ops::RangeInclusive;

pub(super) type LineRange = RangeInclusive<u32>;

/// Functions of a source, in order.
#[derive(Debug, Default)]
pub(super) struct Functions {
    definitions: Vec<Definition>,
    lines: u32,
}

#[derive(Debug)]
struct Definition {
    /// Name with those of the classes and functions around it: `Net.forward`.
    path: String,
    range: LineRange,
}

impl Functions {
    /// Finds `def` and `class`. A definition ends before the next line that is not indented deeper.
    pub(super) fn of(text: &str) -> Self {
        let mut definitions: Vec<Definition> = Vec::new();
        // Indentation and index of the definitions around a line.
        let mut open: Vec<(usize, usize)> = Vec::new();
        let mut number = 0;
        let mut filled = 0;
        let mut brackets = 0_i64;
        for line in text.lines() {
            number += 1;
            let code = line.trim_start();
            if code.is_empty() || code.starts_with('#') {
                continue;
            }
            let indent = line.len() - code.len();
            // Arguments on further lines may stand anywhere.
            if brackets <= 0 {
                while let Some((_, at)) = open.pop_if(|(outer, _)| *outer >= indent) {
                    let start = *definitions[at].range.start();
                    definitions[at].range = start..=filled;
                }
                if let Some(name) = definition(code) {
                    let outer = open.last().map(|(_, at)| &*definitions[*at].path);
                    let path = outer.map_or(name.to_owned(), |outer| format!("{outer}.{name}"));
                    open.push((indent, definitions.len()));
                    definitions.push(Definition {
                        path,
                        range: number..=u32::MAX,
                    });
                }
            }
            brackets = (brackets + balance(code)).max(0);
            filled = number;
        }
        for (_, at) in open {
            let start = *definitions[at].range.start();
            definitions[at].range = start..=filled;
        }
        Self {
            definitions,
            lines: number,
        }
    }

    /// Ranges of the functions and classes with a name, such as `forward` or `Net.forward`.
    pub(super) fn named(&self, name: &str) -> Vec<LineRange> {
        let ending = format!(".{name}");
        let named = self.definitions.iter();
        let named = named.filter(|it| it.path == name || it.path.ends_with(&ending));
        named.map(|it| it.range.clone()).collect()
    }

    /// True if code of a function may stand on a line: the line exists, and is inside a function of that name.
    pub(super) fn can_hold(&self, line: u32, function: &str) -> bool {
        if line > self.lines {
            return false;
        }
        // Lambdas, comprehensions and modules have no `def`.
        if function.starts_with('<') || function.is_empty() {
            return true;
        }
        let around = self
            .definitions
            .iter()
            .filter(|it| it.range.contains(&line));
        let is_named = |it: &Definition| it.path.rsplit('.').next() == Some(function);
        around.into_iter().any(is_named)
    }
}

/// Name of the function or class that a line defines.
fn definition(code: &str) -> Option<&str> {
    let rest = code.strip_prefix("async ").unwrap_or(code).trim_start();
    let rest = rest
        .strip_prefix("def ")
        .or_else(|| rest.strip_prefix("class "))?;
    let rest = rest.trim_start();
    let end = rest.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    let name = &rest[..end.unwrap_or(rest.len())];
    (!name.is_empty()).then_some(name)
}

/// Number of brackets opened on a line, minus those closed. Brackets in texts count too; most texts are balanced.
fn balance(code: &str) -> i64 {
    let code = code.split('#').next().unwrap_or(code);
    let letters = code.chars().map(|letter| match letter {
        '(' | '[' | '{' => 1,
        ')' | ']' | '}' => -1,
        _ => 0,
    });
    letters.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()

    # Comment.
    def forward(
self, x,
    ):
        def inner():
            return x

        return inner()


async def forward(x):
    return x

y = 1
";

    #[test]
    fn functions_end_before_the_next_line_at_their_indentation() {
        let functions = Functions::of(SOURCE);
        assert_eq!(functions.named("Net"), [3..=14]);
        assert_eq!(functions.named("__init__"), [4..=5]);
        assert_eq!(functions.named("Net.forward"), [8..=14]);
        assert_eq!(functions.named("forward"), [8..=14, 17..=18]);
        assert_eq!(functions.named("inner"), [11..=12]);
        assert_eq!(functions.named("y"), []);
    }

    #[test]
    fn a_line_outside_of_its_function_is_of_another_source() {
        let functions = Functions::of(SOURCE);
        assert!(functions.can_hold(14, "forward"));
        assert!(functions.can_hold(12, "inner"));
        assert!(functions.can_hold(20, "<module>"));
        assert!(!functions.can_hold(20, "forward"));
        assert!(!functions.can_hold(21, "<module>"));
        assert!(functions.can_hold(3, "Net"));
    }
}
