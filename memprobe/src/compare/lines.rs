//! Lines of one recording found again in another, whose source may have changed.
//!
//! A line is the same if file, function and number are. If the code has moved, the lines of a function are shifted by the
//! number that makes most of them meet. Of the others, the nearest within a few lines is taken, in the same order. All
//! lines at which a recording allocated count, not only those that are live at the compared moment.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::event::Frame;
use crate::ledger::snapshot::Site;

/// Most lines between a line and the one that it is matched with, after the shift of its function.
const MAX_DISTANCE: u32 = 4;
/// Most pairs of lines of a function that are tried for a shift.
const MAX_PAIRS: usize = 1 << 16;

/// Lines of the earlier recording, and the lines of the later one that they are inferred to be. Lines that are equal in
/// both are left out; `None` is a line that has no partner, in a function that both have.
#[derive(Debug, Default)]
pub struct LineMatches {
    frames: HashMap<Frame, Option<Frame>>,
}

/// Function of a file: file, function, library.
type Function = (Arc<str>, Arc<str>, Option<Arc<str>>);
type LinesOfFunctions = BTreeMap<Function, BTreeSet<u32>>;

impl LineMatches {
    pub fn find(before: &HashSet<&Site>, after: &HashSet<&Site>) -> Self {
        let (before, after) = (functions(before), functions(after));
        let files = |lines: &LinesOfFunctions| -> BTreeSet<Arc<str>> {
            lines.keys().map(|(file, ..)| Arc::clone(file)).collect()
        };
        let moved = moved_files(&files(&before), &files(&after));
        let mut frames = HashMap::new();
        for ((file, function, library), lines) in &before {
            let file_after = moved.get(file).unwrap_or(file);
            let key = (
                Arc::clone(file_after),
                Arc::clone(function),
                library.clone(),
            );
            let Some(lines_after) = after.get(&key) else {
                continue;
            };
            let frame = |file: &Arc<str>, line| Frame {
                file: Arc::clone(file),
                line,
                function: Arc::clone(function),
                library: library.clone(),
            };
            let partners = pairs(lines, lines_after);
            for line in lines {
                let partner = partners.get(line).map(|line| frame(file_after, *line));
                let own = frame(file, *line);
                if partner.as_ref() != Some(&own) {
                    frames.insert(own, partner);
                }
            }
        }
        Self { frames }
    }

    /// Returns the site of the later recording that `site` of the earlier one is: itself if nothing was inferred, `None`
    /// if it is gone.
    pub fn later(&self, site: &Site) -> Option<Site> {
        let moved = |frame: &Frame| match self.frames.get(frame) {
            Some(partner) => partner.clone(),
            None => Some(frame.clone()),
        };
        Some(match site {
            Site::Line(frame) => Site::Line(moved(frame)?),
            Site::Backward(frame) => Site::Backward(moved(frame)?),
            Site::Node { forward, name } => Site::Node {
                forward: moved(forward)?,
                name: Arc::clone(name),
            },
            Site::NoLine { .. } => site.clone(),
        })
    }
}

fn functions(sites: &HashSet<&Site>) -> LinesOfFunctions {
    let mut functions = LinesOfFunctions::new();
    for frame in sites.iter().filter_map(|site| site.frame()) {
        let key = (
            Arc::clone(&frame.file),
            Arc::clone(&frame.function),
            frame.library.clone(),
        );
        functions.entry(key).or_default().insert(frame.line);
    }
    functions
}

/// Files that only one recording has, by the one file of the other that ends in the most equal names.
fn moved_files(
    before: &BTreeSet<Arc<str>>,
    after: &BTreeSet<Arc<str>>,
) -> HashMap<Arc<str>, Arc<str>> {
    let candidates = |own: &str| {
        let others = after.difference(before);
        let scored = others.map(|other| (common_tail(own, other), Arc::clone(other)));
        let mut scored: Vec<_> = scored.filter(|(names, _)| *names > 0).collect();
        scored.sort();
        scored
    };
    let mut found = HashMap::new();
    let mut taken: HashMap<Arc<str>, u32> = HashMap::new();
    for own in before.difference(after) {
        let scored = candidates(own);
        let Some((most, best)) = scored.last() else {
            continue;
        };
        if scored.iter().filter(|(names, _)| names == most).count() == 1 {
            *taken.entry(Arc::clone(best)).or_default() += 1;
            found.insert(Arc::clone(own), Arc::clone(best));
        }
    }
    // Two files that could both be the same one stay apart.
    found.retain(|_, other| taken.get(other) == Some(&1));
    found
}

/// Number of equal names at the end of two paths.
fn common_tail(one: &str, other: &str) -> usize {
    let names = one.rsplit('/').zip(other.rsplit('/'));
    names.take_while(|(one, other)| one == other).count()
}

/// Lines of a function before and after, each at most once, in the same order.
fn pairs(before: &BTreeSet<u32>, after: &BTreeSet<u32>) -> BTreeMap<u32, u32> {
    let shift = shift(before, after);
    // Line 0 is an unknown one.
    let shifted = |line: u32| match line {
        0 => Some(0),
        line => u32::try_from(i64::from(line) + shift).ok(),
    };
    let mut pairs: BTreeMap<u32, u32> = before
        .iter()
        .filter_map(|line| Some((*line, shifted(*line).filter(|line| after.contains(line))?)))
        .collect();
    // One recording allocated at all lines of the other: none of them has changed.
    if before.is_subset(after) || after.is_subset(before) {
        return pairs;
    }
    let mut near = nearest(before, after, shifted);
    near.retain(|(_, line, _)| !pairs.contains_key(line));
    let mut used: BTreeSet<u32> = pairs.values().copied().collect();
    for (_, line, other) in near {
        let lower = pairs.range(..line).next_back();
        let upper = pairs.range(line..).next();
        let keeps_order = lower.is_none_or(|(_, end)| *end < other)
            && upper.is_none_or(|(at, end)| *at != line && *end > other);
        if keeps_order && used.insert(other) {
            pairs.insert(line, other);
        }
    }
    pairs
}

/// Lines before and after within [`MAX_DISTANCE`], nearest first: distance, before, after.
fn nearest(
    before: &BTreeSet<u32>,
    after: &BTreeSet<u32>,
    shifted: impl Fn(u32) -> Option<u32>,
) -> Vec<(u32, u32, u32)> {
    let mut near: Vec<(u32, u32, u32)> = Vec::new();
    for line in before.iter().filter(|line| **line > 0) {
        let Some(place) = shifted(*line) else {
            continue;
        };
        let around = place.saturating_sub(MAX_DISTANCE).max(1)..=place.saturating_add(MAX_DISTANCE);
        let others = after.range(around);
        near.extend(others.map(|other| (place.abs_diff(*other), *line, *other)));
    }
    near.sort_unstable();
    near
}

/// Shift of the lines of a function that makes most of them meet; of equal ones the smallest.
fn shift(before: &BTreeSet<u32>, after: &BTreeSet<u32>) -> i64 {
    if before.len().saturating_mul(after.len()) > MAX_PAIRS {
        return 0;
    }
    let mut meetings: HashMap<i64, usize> = HashMap::new();
    for line in before.iter().filter(|line| **line > 0) {
        for other in after.iter().filter(|line| **line > 0) {
            let shift = i64::from(*other) - i64::from(*line);
            *meetings.entry(shift).or_default() += 1;
        }
    }
    let best = meetings
        .into_iter()
        .max_by_key(|(shift, lines)| (*lines, std::cmp::Reverse((shift.abs(), *shift))));
    best.map_or(0, |(shift, _)| shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(file: &str, line: u32, function: &str) -> Site {
        Site::Line(Frame {
            file: file.into(),
            line,
            function: function.into(),
            library: None,
        })
    }

    fn later(before: &[Site], after: &[Site]) -> Vec<Option<u32>> {
        let matches = LineMatches::find(&before.iter().collect(), &after.iter().collect());
        let later = before.iter().map(|site| matches.later(site));
        let later = later.map(|site| site.filter(|site| after.contains(site)));
        later
            .map(|site| site?.frame().map(|frame| frame.line))
            .collect()
    }

    fn lines_of_main(lines: &[u32]) -> Vec<Site> {
        lines
            .iter()
            .map(|line| site("/a/train.py", *line, "main"))
            .collect()
    }

    fn moved(before: &[u32], after: &[u32]) -> Vec<Option<u32>> {
        later(&lines_of_main(before), &lines_of_main(after))
    }

    #[test]
    fn lines_that_both_recordings_have_stay_as_they_are() {
        assert_eq!(
            moved(&[10, 11, 12], &[10, 11, 12]),
            [Some(10), Some(11), Some(12)]
        );
        assert_eq!(moved(&[10, 12], &[10, 11, 12]), [Some(10), Some(12)]);
        assert_eq!(moved(&[10, 11, 14], &[10, 14]), [Some(10), None, Some(14)]);
    }

    #[test]
    fn lines_below_an_insertion_are_found_lower_down() {
        assert_eq!(moved(&[10, 11], &[11, 12]), [Some(11), Some(12)]);
        assert_eq!(moved(&[10], &[500]), [Some(500)]);
        let after = [10, 13, 14, 19];
        assert_eq!(
            moved(&[10, 11, 12, 17], &after),
            [Some(10), Some(13), Some(14), Some(19)]
        );
    }

    #[test]
    fn a_line_that_is_gone_is_not_mistaken_for_the_one_at_its_number() {
        let found = moved(&[10, 11, 13, 15, 16], &[11, 12, 14, 16, 40]);
        assert_eq!(found, [Some(11), Some(12), Some(14), Some(16), None]);
    }

    #[test]
    fn a_line_far_from_all_others_has_no_partner() {
        assert_eq!(
            moved(&[10, 20, 90], &[10, 20, 60]),
            [Some(10), Some(20), None]
        );
    }

    #[test]
    fn an_unknown_line_is_matched_with_an_unknown_one_alone() {
        assert_eq!(moved(&[0, 5], &[0, 5]), [Some(0), Some(5)]);
        assert_eq!(moved(&[0], &[3]), [None]);
    }

    #[test]
    fn functions_are_not_mixed_up() {
        let before = [site("/a/m.py", 10, "f"), site("/a/m.py", 12, "g")];
        let after = [site("/a/m.py", 12, "f"), site("/a/m.py", 14, "g")];
        assert_eq!(later(&before, &after), [Some(12), Some(14)]);
    }

    #[test]
    fn a_checkout_in_another_directory_has_the_same_files() {
        let before = [
            site("/old/net/m.py", 1, "f"),
            site("/old/vision/m.py", 2, "f"),
        ];
        let after = [
            site("/new/net/m.py", 1, "f"),
            site("/new/vision/m.py", 2, "f"),
        ];
        assert_eq!(later(&before, &after), [Some(1), Some(2)]);
        let twice = [site("/x/m.py", 1, "f"), site("/y/m.py", 2, "f")];
        assert_eq!(later(&before[..1], &twice), [None], "two candidates");
        let notebook = [site("/b/other.py", 1, "f")];
        assert_eq!(later(&before[..1], &notebook), [None]);
    }
}
