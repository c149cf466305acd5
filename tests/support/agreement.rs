//! Compares memprobe's events with those of PyTorch's own recorder.

use crate::events::Event;
use crate::pytorch::workloads;
use crate::reference::{DeviceEvents, Reference, TraceEvent, TraceFrame};

/// Maximum frames that memprobe keeps per stack.
pub const MAX_FRAMES: usize = 128;

/// Result of a comparison.
#[derive(Debug, Default)]
pub struct Agreement {
    /// Events of PyTorch's history that memprobe can observe.
    pub events: usize,
    /// Python stacks compared frame by frame.
    pub stacks: usize,
    /// Events of threads without Python (autograd's).
    pub backward: usize,
    /// Allocations whose requested bytes were compared. A recording without tensors has none.
    pub requested: usize,
    /// Differences in words.
    pub differences: Vec<String>,
    /// True if autograd's threads carry the process's name.
    engine_is_anonymous: bool,
}

/// True if PyTorch names autograd's threads: from 2.3 on (torch/csrc/autograd/engine.cpp@v2.3.1).
/// Before, the threads carry the process's name.
fn names_engine_threads(torch: &str) -> bool {
    let mut numbers = torch.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(2), Some(3))
}

impl Agreement {
    /// Creates an empty comparison for this version of PyTorch.
    pub fn on(torch: &str) -> Self {
        Self {
            engine_is_anonymous: !names_engine_threads(torch),
            ..Self::default()
        }
    }

    /// Compares a whole run, device by device.
    pub fn of(reference: &Reference, events: &[Event]) -> Self {
        let mut agreement = Self::on(&reference.torch);
        for device in &reference.devices {
            let recorded: Vec<&Event> = events
                .iter()
                .filter(|event| event.device == Some(device.device))
                .collect();
            agreement.compare(&history(device), &recorded);
        }
        for stray in events.iter().filter(|event| event.device.is_none()) {
            agreement.differ(format!("no device: {stray:?}"));
        }
        agreement
    }

    /// Compares two sequences of events, one by one.
    pub fn compare(&mut self, history: &[&TraceEvent], recorded: &[&Event]) {
        for at in 0..history.len().max(recorded.len()) {
            match (history.get(at), recorded.get(at)) {
                (Some(theirs), Some(ours)) => {
                    if !self.compare_event(at, theirs, ours) {
                        // After a mismatch, everything that follows would differ too.
                        return;
                    }
                }
                (theirs, ours) => {
                    self.differ(format!(
                        "event {at} is on one side alone: PyTorch has {theirs:#?}, memprobe {ours:#?}"
                    ));
                    return;
                }
            }
        }
    }

    /// Returns true if both are the same event, even if details differ.
    fn compare_event(&mut self, at: usize, theirs: &TraceEvent, ours: &Event) -> bool {
        self.events += 1;
        if !is_same(theirs, ours) {
            self.differ(format!(
                "event {at} is another: PyTorch has {theirs:#?}, memprobe {ours:#?}"
            ));
            return false;
        }
        if let Err(difference) = self.compare_details(theirs, ours) {
            self.differ(format!(
                "event {at}: {difference}\n  PyTorch has  {}\n  memprobe has {}",
                in_words(
                    &theirs.action,
                    Some(theirs.addr),
                    Some(theirs.size),
                    &theirs.frames
                ),
                in_words(&ours.action, ours.addr, ours.size, &ours.stack)
            ));
        }
        true
    }

    fn compare_details(&mut self, theirs: &TraceEvent, ours: &Event) -> Result<(), &'static str> {
        let size = ours.size.ok_or("no size")?;
        let segment = theirs.action.starts_with("segment");
        if size < theirs.size || segment && size != theirs.size {
            return Err("size");
        }
        if ours.action == "alloc"
            && let Some(requested) = ours.requested
        {
            self.requested += 1;
            if requested != theirs.size {
                return Err("what was asked for");
            }
        }
        if ours.action.contains("free") {
            return if ours.stack.is_empty() {
                Ok(())
            } else {
                Err("a free has no stack")
            };
        }
        if theirs.frames.is_empty() {
            return self.compare_backward(ours);
        }
        self.stacks += 1;
        compare_stack(&theirs.frames, ours)
    }

    /// PyTorch's recorder sees no Python on autograd's threads; memprobe reports the waiting
    /// thread.
    fn compare_backward(&mut self, ours: &Event) -> Result<(), &'static str> {
        self.backward += 1;
        let named = ours.thread.as_deref().is_some_and(|name| {
            name.starts_with("pt_autograd_") || (self.engine_is_anonymous && !name.is_empty())
        });
        if !named || !ours.stack.is_empty() {
            return Err("the backward thread is not named");
        }
        let waiting = ours.waiting.as_deref().unwrap_or_default();
        if calls_backward(waiting) {
            return Ok(());
        }
        Err("the line that waits in backward() is not named")
    }

    fn differ(&mut self, difference: String) {
        self.differences.push(difference);
    }
}

/// Returns a device's history without entries that change no memory. The allocator frees a block on
/// request and reports it once, so `free_completed` is no event. `snapshot` is a reading of the
/// allocator, such as that of NCCL's process group.
pub fn history(device: &DeviceEvents) -> Vec<&TraceEvent> {
    let is_event = |event: &&TraceEvent| {
        let action = event.action.as_str();
        !matches!(action, "free_completed" | "snapshot")
    };
    device.events.iter().filter(is_event).collect()
}

/// True if both records describe the same event.
pub fn is_same(theirs: &TraceEvent, ours: &Event) -> bool {
    match theirs.action.as_str() {
        "free_requested" => ours.action == "free" && ours.addr == Some(theirs.addr),
        // The history stores the device's free bytes in place of the address.
        "oom" => ours.action == "oom" && ours.addr.is_none(),
        action => ours.action == action && ours.addr == Some(theirs.addr),
    }
}

/// True if the innermost line outside of PyTorch calls `backward()`, judged by its source text. The
/// cells of a notebook are in no file: then PyTorch's frame below must be of that name.
fn calls_backward(stack: &[TraceFrame]) -> bool {
    let of_pytorch = |frame: &TraceFrame| frame.file.contains("/site-packages/torch/");
    let Some(at) = stack.iter().position(|frame| !of_pytorch(frame)) else {
        return false;
    };
    // Workloads keep their name from the command line; packages have absolute paths.
    let Ok(text) = std::fs::read_to_string(workloads().join(&stack[at].file)) else {
        return at > 0 && stack[at - 1].function == "backward";
    };
    let line = usize::try_from(stack[at].line).unwrap_or(0).checked_sub(1);
    let line = line.and_then(|line| text.lines().nth(line));
    line.is_some_and(|line| line.contains(".backward("))
}

/// Formats an event on one line, with its full stack.
fn in_words(action: &str, addr: Option<u64>, size: Option<u64>, frames: &[TraceFrame]) -> String {
    let mut words = format!(
        "{action} of {} at {:#x}, {} frames",
        size.unwrap_or(0),
        addr.unwrap_or(0),
        frames.len()
    );
    for frame in frames {
        words.push_str(&format!(
            " < {}:{} {}",
            frame.file, frame.line, frame.function
        ));
    }
    words
}

fn compare_stack(theirs: &[TraceFrame], ours: &Event) -> Result<(), &'static str> {
    let deep = theirs.len() > MAX_FRAMES;
    if ours.stack_truncated.unwrap_or(false) != deep {
        return Err("whether the stack is whole");
    }
    let expected = &theirs[..theirs.len().min(MAX_FRAMES)];
    if ours.stack == expected {
        Ok(())
    } else {
        Err("stack")
    }
}
