//! Names of files, frames, stacks and rows, the same in every view.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::text::{CUT, clean, fit};
use crate::cuda::pools::pool_of;
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex, Frame, Stack, StackKind, Target};
use crate::ledger::snapshot::{LineRow, OutsideRow, Site};

pub const BEFORE_ATTACH: &str = "(allocated before attach)";
/// Row name for memory that was live when the process was opened, where accounting starts at opening.
pub(super) const BEFORE_OPENING: &str = "(live before opening)";
/// Row name for the difference between the allocator's total and the known blocks.
pub const UNACCOUNTED: &str = "(unaccounted)";
pub const BLOCKS: &str = "BLOCKS";

/// Shortest unambiguous file names: `model.py`, or `vision/model.py` if there is also a `text/model.py`.
#[derive(Clone, Debug, Default)]
pub struct FileNames {
    short: HashMap<Arc<str>, String>,
}

impl FileNames {
    pub fn of<'a>(files: impl Iterator<Item = &'a Arc<str>>) -> Self {
        let files: HashSet<&Arc<str>> = files.collect();
        let mut alike: HashMap<&str, Vec<&Arc<str>>> = HashMap::new();
        for file in files {
            alike.entry(tail(file, 1)).or_default().push(file);
        }
        let mut short = HashMap::new();
        for group in alike.into_values() {
            let parts = parts_that_differ(&group);
            for file in group {
                short.insert(file.clone(), clean(tail(file, parts)));
            }
        }
        Self { short }
    }

    pub fn short(&self, file: &str) -> String {
        match self.short.get(file) {
            Some(name) => name.clone(),
            None => clean(tail(file, least_parts(file))),
        }
    }

    /// Returns `model.py:88 forward`, or `main (libtrain.so)` for native code without line information.
    pub fn frame(&self, frame: &Frame) -> String {
        if let Some(place) = native_place(frame) {
            return place;
        }
        place(
            &self.short(&frame.file),
            frame.line,
            &clean(&frame.function),
        )
    }

    pub fn site(&self, site: &Site) -> String {
        named_site(site, |frame| self.frame(frame))
    }
}

/// Formats a frame with the whole path of its file.
pub fn whole_frame(frame: &Frame) -> String {
    if let Some(place) = native_place(frame) {
        return place;
    }
    place(&clean(&frame.file), frame.line, &clean(&frame.function))
}

/// Returns the row name of a site; `frame` formats its frames.
pub fn named_site(site: &Site, frame: impl Fn(&Frame) -> String) -> String {
    match site {
        Site::Line(line) => frame(line),
        Site::Backward(line) => format!("backward of {}", frame(line)),
        Site::Node { forward, name } => {
            format!("backward of {}  {}", frame(forward), clean(name))
        }
        Site::NoLine { thread, reason } if thread.is_empty() => format!("({reason})"),
        Site::NoLine { thread, reason } => format!("({}: {reason})", clean(thread)),
    }
}

/// Formats a stack on one line, innermost frame first. At most `most` frames are spelt out; the rest are counted.
pub fn named_stack(stack: &Stack, most: usize, frame: impl Fn(&Frame) -> String) -> String {
    let mut steps: Vec<String> = stack.frames.iter().take(most).map(frame).collect();
    let hidden = stack.frames.len() - steps.len();
    match (hidden, stack.truncated) {
        (0, false) => {}
        (0, true) => steps.push(CUT.to_owned()),
        (_, false) => steps.push(format!("{hidden} more")),
        (_, true) => steps.push(format!("{hidden} and more")),
    }
    let steps = steps.join(" <- ");
    match &stack.kind {
        StackKind::Python | StackKind::Native => steps,
        StackKind::Waiting { thread } => {
            format!("{}, backward() called at {steps}", clean(thread))
        }
        StackKind::Unknown { thread, reason } => format!("{}: {}", clean(thread), reason.as_str()),
    }
}

/// Returns `main (libtrain.so)` for native code without line information; `None` for other frames.
pub fn native_place(frame: &Frame) -> Option<String> {
    let library = frame.library.as_ref().filter(|_| frame.file.is_empty())?;
    Some(format!(
        "{} ({})",
        clean(&frame.function),
        clean(tail(library, 1))
    ))
}

/// Returns `model.py:88 forward`, with `?` for an unknown line. The caller has cleaned the names.
pub fn place(file: &str, line: u32, function: &str) -> String {
    match line {
        0 => format!("{file}:? {function}"),
        line => format!("{file}:{line} {function}"),
    }
}

/// Returns the kind of memory and its device, such as `device cuda:0` or `pinned`.
pub fn cuda_memory_kind(row: &OutsideRow) -> String {
    let space = row.space.as_str();
    match row.device {
        Some(device) => format!("{space} {device}"),
        None if row.space.is_on_device() => format!("{space} {}", DeviceIndex::UNKNOWN),
        None => space.to_owned(),
    }
}

pub fn library_name(row: &OutsideRow) -> &str {
    library_file(&row.library)
}

/// Returns the file name of a library.
pub fn library_file(library: &str) -> &str {
    tail(library, 1)
}

/// Live bytes of a line by the allocator that divides them, inferred from the native code on each stack.
pub(super) fn line_pools(line: &LineRow) -> Vec<(&'static str, Bytes)> {
    let mut pools: Vec<(&'static str, Bytes)> = Vec::new();
    for row in &line.stacks {
        let frames = row.stack.frames.iter();
        let frames = frames.map(|frame| (&*frame.function, frame.library.as_deref()));
        let Some(pool) = pool_of(frames) else {
            continue;
        };
        match pools.iter_mut().find(|(known, _)| *known == pool) {
            Some((_, sum)) => sum.0 = sum.0.saturating_add(row.live.0),
            None => pools.push((pool, row.live)),
        }
    }
    pools
}

/// Returns the allocators that divide the memory of a line; `None` if no stack shows one.
pub fn pool_words(line: &LineRow) -> Option<String> {
    let pools = line_pools(line);
    let words = pools.iter().map(|(pool, bytes)| {
        let part = (*bytes != line.live).then(|| format!("{} in ", human(*bytes)));
        part.unwrap_or_default() + pool
    });
    let words = words.collect::<Vec<_>>().join(", ");
    (!pools.is_empty()).then(|| format!("({words}; inferred)"))
}

/// Returns the path components that a name needs: `__init__.py` is meaningless without its directory.
fn least_parts(file: &str) -> usize {
    if matches!(tail(file, 1), "__init__.py" | "__main__.py") {
        2
    } else {
        1
    }
}

fn parts_that_differ(files: &[&Arc<str>]) -> usize {
    let least = files.first().map_or(1, |file| least_parts(file));
    let differ = |parts: &usize| {
        let tails: HashSet<&str> = files.iter().map(|file| tail(file, *parts)).collect();
        tails.len() == files.len()
    };
    (least..8).find(differ).unwrap_or(8)
}

/// Returns the last `parts` components of a path.
fn tail(file: &str, parts: usize) -> &str {
    let cut = file.rmatch_indices('/').nth(parts.saturating_sub(1));
    match cut {
        Some((at, _)) if at + 1 < file.len() => &file[at + 1..],
        _ => file,
    }
}

const CONTAINER: usize = 32;

/// Returns `PID 20292`, or `PID 20292 (7 in trainer-0)` for a process in another PID namespace or container:
/// its PID in memprobe's namespace, its PID in its own, its container.
pub fn process(target: &Target) -> Option<String> {
    let tgid = target.tgid?;
    let container = target.container.as_deref().map(clean);
    let container = container.map(|name| fit(&name, CONTAINER, CUT));
    let inside = match (target.inner_tgid, container) {
        (None, None) => return Some(format!("PID {}", tgid.0)),
        (None, Some(container)) => container,
        (Some(inner), None) => format!("{} in its own namespace", inner.0),
        (Some(inner), Some(container)) => format!("{} in {container}", inner.0),
    };
    Some(format!("PID {} ({inside})", tgid.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Context;
    use crate::event::NoStack;

    fn frame(file: &str, line: u32, function: &str) -> Frame {
        Frame {
            file: file.into(),
            line,
            function: function.into(),
            library: None,
        }
    }

    #[test]
    fn file_names_are_as_short_as_unique() {
        let files: Vec<Arc<str>> = [
            "/a/text/model.py",
            "/a/vision/model.py",
            "/a/train.py",
            "/x/nn/__init__.py",
        ]
        .map(Arc::from)
        .to_vec();
        let names = FileNames::of(files.iter());
        assert_eq!(names.short(&files[0]), "text/model.py");
        assert_eq!(names.short(&files[1]), "vision/model.py");
        assert_eq!(names.short(&files[2]), "train.py");
        assert_eq!(names.short(&files[3]), "nn/__init__.py");
        assert_eq!(names.short("/unseen/loss.py"), "loss.py");
        assert_eq!(names.short("<string>"), "<string>");
        assert_eq!(names.short("/"), "/");
        assert_eq!(names.short(""), "");
    }

    #[test]
    fn a_frame_without_a_line_says_so() {
        let names = FileNames::default();
        assert_eq!(names.frame(&frame("/a/train.py", 7, "f")), "train.py:7 f");
        assert_eq!(names.frame(&frame("/a/train.py", 0, "f")), "train.py:? f");
        assert_eq!(names.frame(&frame("unseen/", 1, "f")), "unseen/:1 f");
        assert_eq!(
            whole_frame(&frame("/a/train.py", 7, "f")),
            "/a/train.py:7 f"
        );
    }

    #[test]
    fn a_site_without_a_line_names_thread_and_reason() {
        let names = FileNames::default();
        let no_line = |thread: &str| Site::NoLine {
            thread: thread.into(),
            reason: NoStack::Lost.as_str(),
        };
        assert_eq!(names.site(&no_line("nccl\n")), "(nccl\\n: stack lost)");
        assert_eq!(names.site(&no_line("")), "(stack lost)");
        let backward = Site::Backward(frame("/a/train.py", 7, "step"));
        assert_eq!(names.site(&backward), "backward of train.py:7 step");
        let node = Site::Node {
            forward: frame("/a/model.py", 88, "forward"),
            name: "AddmmBackward0".into(),
        };
        assert_eq!(
            names.site(&node),
            "backward of model.py:88 forward  AddmmBackward0"
        );
    }

    #[test]
    fn a_stack_reads_outwards_and_counts_the_frames_that_are_left_out() {
        let text = |kind: &StackKind, most: usize, truncated: bool| {
            let stack = Stack {
                kind: kind.clone(),
                frames: vec![frame("m.py", 8, "f"), frame("t.py", 3, "g")],
                truncated,
                context: Context::default(),
            };
            named_stack(&stack, most, |frame| FileNames::default().frame(frame))
        };
        let python = StackKind::Python;
        assert_eq!(text(&python, 2, false), "m.py:8 f <- t.py:3 g");
        assert_eq!(text(&python, 2, true), "m.py:8 f <- t.py:3 g <- …");
        assert_eq!(text(&python, 1, false), "m.py:8 f <- 1 more");
        assert_eq!(text(&python, 1, true), "m.py:8 f <- 1 and more");
        let thread: Arc<str> = "autograd\n".into();
        let waiting = StackKind::Waiting {
            thread: thread.clone(),
        };
        assert_eq!(
            text(&waiting, 1, false),
            "autograd\\n, backward() called at m.py:8 f <- 1 more"
        );
        let unknown = StackKind::Unknown {
            thread,
            reason: NoStack::Lost,
        };
        assert_eq!(text(&unknown, 2, false), "autograd\\n: stack lost");
    }
}

#[cfg(test)]
mod process_tests {
    use super::*;
    use crate::event::Tgid;

    #[test]
    fn a_process_in_a_container_shows_both_pids() {
        let mut target = Target::default();
        assert_eq!(process(&target), None);
        target.tgid = Some(Tgid(20292));
        assert_eq!(process(&target).as_deref(), Some("PID 20292"));
        target.inner_tgid = Some(Tgid(7));
        let alone = process(&target);
        assert_eq!(alone.as_deref(), Some("PID 20292 (7 in its own namespace)"));
        target.container = Some("trainer-0\x1b[31m".to_owned());
        let named = process(&target);
        assert_eq!(
            named.as_deref(),
            Some("PID 20292 (7 in trainer-0\\u{1b}[31m)")
        );
        target.inner_tgid = None;
        target.container = Some("slurm:4711".to_owned());
        assert_eq!(process(&target).as_deref(), Some("PID 20292 (slurm:4711)"));
    }

    #[test]
    fn an_endless_name_is_cut() {
        let target = Target {
            tgid: Some(Tgid(1)),
            container: Some("x".repeat(500)),
            ..Target::default()
        };
        assert!(process(&target).is_some_and(|text| text.len() < 60));
    }
}
