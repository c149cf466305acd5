//! Parses the names of PyTorch's own `record_function` ranges.

use memprobe_common::MARK_NAME;

use crate::event::MarkedPhase;

/// Prefix and suffix of these names around the class (torch/optim/optimizer.py,
/// torch/utils/data/dataloader.py@v2.15.0, the same in 2.0.1).
const FORMS: [(&str, &str, MarkedPhase); 3] = [
    ("Optimizer.step#", ".step", MarkedPhase::Step),
    ("Optimizer.zero_grad#", ".zero_grad", MarkedPhase::ZeroGrad),
    (
        "enumerate(DataLoader)#",
        ".__next__",
        MarkedPhase::NextBatch,
    ),
];

/// Returns the phase that starts and the class that runs it; `None` for a range of the program's own. The
/// kernel programs truncate long names, in which case the class is truncated too.
pub fn parse(name: &[u8; MARK_NAME]) -> Option<(MarkedPhase, String)> {
    let length = name.iter().position(|byte| *byte == 0)?;
    let is_whole = length + 1 < MARK_NAME;
    let name = String::from_utf8_lossy(&name[..length]);
    FORMS.iter().find_map(|(start, end, begins)| {
        let class = name.strip_prefix(start)?;
        let class = match class.strip_suffix(end) {
            Some(class) => class,
            None if is_whole => return None,
            None => class,
        };
        (!class.is_empty()).then(|| (*begins, class.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(MarkedPhase, String)> {
        let mut name = [0; MARK_NAME];
        let length = text.len().min(MARK_NAME - 1);
        name[..length].copy_from_slice(&text.as_bytes()[..length]);
        parse(&name)
    }

    #[test]
    fn pytorchs_own_names_are_marks() {
        for (name, begins, class) in [
            ("Optimizer.step#Adam.step", MarkedPhase::Step, "Adam"),
            (
                "Optimizer.zero_grad#SGD.zero_grad",
                MarkedPhase::ZeroGrad,
                "SGD",
            ),
            (
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                MarkedPhase::NextBatch,
                "_SingleProcessDataLoaderIter",
            ),
        ] {
            assert_eq!(parsed(name), Some((begins, class.to_owned())), "{name}");
        }
    }

    #[test]
    fn names_of_the_programs_own_are_none() {
        for name in [
            "",
            "Optimizer.step",
            "Optimizer.step#.step",
            "Optimizer.step#Adam",
            "mine",
        ] {
            assert_eq!(parsed(name), None, "{name}");
        }
        assert_eq!(parse(&[b'a'; MARK_NAME]), None, "without an end");
    }

    #[test]
    fn a_truncated_name_yields_the_beginning_of_the_class() {
        let class = "A".repeat(200);
        let (_, prefix) = parsed(&format!("Optimizer.step#{class}.step")).expect("a step");
        assert_eq!(prefix.len(), MARK_NAME - 1 - "Optimizer.step#".len());
    }
}
