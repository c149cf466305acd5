//! Fields of a record, appended to a line.

use super::json;
use crate::event::{
    DeviceIndex, Frame, Grad, MemoryEvent, Module, PhaseMark, Purpose, Stack, StackId, StackKind,
    TensorSpec, Tid, TimeNs,
};
use crate::recording::MAX_LINE;

/// Most characters written of a command line, thread name or other text.
const MAX_TEXT: usize = 32 << 10;

/// Appends `pid` and `tid`. Readers take a missing `tid` for [`Tid::UNKNOWN`].
pub(super) fn push_process(line: &mut Vec<u8>, pid: u32, tid: u32) {
    json::push_number_field(line, b",\"pid\":", pid);
    if tid == Tid::UNKNOWN.0 {
        return;
    }
    json::push_number_field(line, b",\"tid\":", tid);
}

pub(super) fn push_ts(line: &mut Vec<u8>, start: TimeNs, time: TimeNs) {
    line.extend_from_slice(b",\"ts\":");
    json::push_micros(line, start.0, time.0);
}

pub(super) fn push_id(line: &mut Vec<u8>, addr: u64) {
    line.extend_from_slice(b",\"id2\":{\"local\":\"");
    json::push_hex(line, addr);
    line.extend_from_slice(b"\"}");
}

/// Appends the numbers of an event as an object without its closing brace.
pub(super) fn push_args(line: &mut Vec<u8>, event: &MemoryEvent) {
    line.extend_from_slice(b"{\"addr\":\"");
    json::push_hex(line, event.addr.0);
    json::push_number_field(line, b"\",\"size\":", event.size.0);
    line.extend_from_slice(b",\"device\":");
    match event.device {
        Some(DeviceIndex::CPU) => line.extend_from_slice(b"\"cpu\""),
        Some(device) => json::push_number(line, device.0),
        None => line.extend_from_slice(b"null"),
    }
    if let Some(totals) = event.totals {
        json::push_number_field(line, b",\"allocated\":", totals.allocated.0);
        json::push_number_field(line, b",\"reserved\":", totals.reserved.0);
    }
    if let Some(call) = event.call {
        line.extend_from_slice(b",\"function\":\"");
        line.extend_from_slice(call.function.as_bytes());
        line.extend_from_slice(b"\",\"space\":\"");
        line.extend_from_slice(call.space.as_str().as_bytes());
        line.push(b'"');
    }
}

pub(super) fn push_shape(line: &mut Vec<u8>, shape: &TensorSpec) {
    line.extend_from_slice(b",\"shape\":[");
    for (at, size) in shape.sizes.iter().enumerate() {
        if at > 0 {
            line.push(b',');
        }
        json::push_number(line, *size);
    }
    line.push(b']');
    if shape.more > 0 {
        json::push_number_field(line, b",\"more_dimensions\":", shape.more);
    }
    line.extend_from_slice(b",\"dtype\":\"");
    match shape.dtype.name() {
        Some(name) => line.extend_from_slice(name.as_bytes()),
        None => line.extend_from_slice(shape.dtype.to_string().as_bytes()),
    }
    line.push(b'"');
    if let Some(requested) = shape.requested {
        json::push_number_field(line, b",\"requested\":", requested.0);
    }
}

pub(super) fn push_purpose(line: &mut Vec<u8>, purpose: &Purpose) {
    line.extend_from_slice(b",\"tensor\":false,\"inferred\":{");
    if let Some(what) = &purpose.what {
        json::push_string_field(line, b"\"purpose\":", clip(what));
        line.push(b',');
    }
    json::push_string_field(line, b"\"function\":", clip(&purpose.function));
    json::push_string_field(line, b",\"library\":", clip(&purpose.library));
    line.push(b'}');
}

pub(super) fn push_name(line: &mut Vec<u8>, name: &str) {
    json::push_string_field(line, b"{\"name\":", name);
    line.push(b'}');
}

/// Appends a record as JSON. Serialization cannot fail: the records are plain data.
pub(super) fn push_record(line: &mut Vec<u8>, record: &impl serde::Serialize) {
    let begin = line.len();
    if serde_json::to_writer(&mut *line, record).is_err() {
        line.truncate(begin);
        line.extend_from_slice(b"null");
    }
}

/// Appends a stack's record. Outer frames that exceed the line length are dropped, and `truncated` is set.
pub(super) fn push_stack(line: &mut Vec<u8>, id: StackId, stack: &Stack) {
    let end = line.len() + MAX_LINE - 1024;
    json::push_number_field(line, b"{\"id\":", id.0);
    line.push(b',');
    let node = stack.context.node.as_ref();
    let forward = node.and_then(|node| node.forward.as_ref());
    // Each stack gets half of the line, so that neither displaces the other.
    let first = match forward {
        Some(_) => end - MAX_LINE / 2,
        None => end,
    };
    push_stack_fields(line, stack, first);
    if let Some(node) = node {
        json::push_string_field(line, b",\"node\":{\"name\":", clip(&node.name));
        if let Some(forward) = forward {
            line.extend_from_slice(b",\"forward\":{");
            push_stack_fields(line, forward, end);
            line.push(b'}');
        }
        line.push(b'}');
    }
    line.push(b'}');
}

/// Appends the fields of a stack, without its node, to an open object. `end` is the maximum length of the line.
fn push_stack_fields(line: &mut Vec<u8>, stack: &Stack, end: usize) {
    let (kind, thread, reason) = match &stack.kind {
        StackKind::Python => ("python", None, None),
        StackKind::Native => ("native", None, None),
        StackKind::Waiting { thread } => ("waiting", Some(thread), None),
        StackKind::Unknown { thread, reason } => ("unknown", Some(thread), Some(reason)),
    };
    json::push_string_field(line, b"\"kind\":", kind);
    if let Some(thread) = thread {
        json::push_string_field(line, b",\"thread\":", clip(thread));
    }
    if let Some(reason) = reason {
        json::push_string_field(line, b",\"reason\":", reason.as_str());
    }
    match &stack.context.module {
        Module::Outside => {}
        Module::Called(path) => {
            json::push_string_field(line, b",\"module\":", clip(path));
        }
        Module::Unknown => line.extend_from_slice(b",\"module_unknown\":true"),
    }
    if stack.context.grad != Grad::Unknown {
        json::push_string_field(line, b",\"grad\":", stack.context.grad.as_str());
    }
    let all = push_frames(line, &stack.frames, end);
    line.extend_from_slice(b",\"truncated\":");
    let truncated = stack.truncated || !all;
    line.extend_from_slice(if truncated { b"true" } else { b"false" });
}

/// Appends frames until the line would exceed `end`. Returns true if all fit.
fn push_frames(line: &mut Vec<u8>, frames: &[Frame], end: usize) -> bool {
    line.extend_from_slice(b",\"frames\":[");
    for (depth, frame) in frames.iter().enumerate() {
        let before = line.len();
        if depth > 0 {
            line.push(b',');
        }
        json::push_string_field(line, b"{\"file\":", &frame.file);
        json::push_number_field(line, b",\"line\":", frame.line);
        json::push_string_field(line, b",\"function\":", &frame.function);
        if let Some(library) = &frame.library {
            json::push_string_field(line, b",\"library\":", library);
        }
        line.push(b'}');
        if line.len() > end {
            line.truncate(before);
            line.push(b']');
            return false;
        }
    }
    line.push(b']');
    true
}

pub(super) fn push_mark(line: &mut Vec<u8>, mark: &PhaseMark) {
    json::push_string_field(line, b"{\"begins\":", mark.phase.as_str());
    json::push_string_field(line, b",\"class\":", clip(&mark.class));
    json::push_number_field(line, b",\"stack_id\":", mark.stack.0);
    line.push(b'}');
}

pub(super) fn clip(text: &str) -> &str {
    text.char_indices()
        .nth(MAX_TEXT)
        .map_or(text, |(end, _)| &text[..end])
}
